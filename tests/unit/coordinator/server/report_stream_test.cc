// Report streams over a real connection.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/coordinator/server/coordinator_world.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

class ReportStreamTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    CoordinatorTest::SetUp();
    Start();
  }
};

TEST_F(ReportStreamTest, SnapshotThenEventsAreFoundByRoutes) {
  ScriptedWorker worker("a");
  worker.Stored(IndexSet::kMemory, root_, std::span(chain_).first(4));
  ReportClient client(*stub_);
  client.GoLive(worker);
  EXPECT_EQ(Matched(chain_), 4u * kBlockTokens);
  ASSERT_TRUE(client.Send(worker.Stored(IndexSet::kMemory, root_, chain_, 4)));
  ASSERT_TRUE(client.AwaitApplied(2));
  EXPECT_EQ(Matched(chain_), 6u * kBlockTokens);
  ASSERT_TRUE(client.Send(worker.Truncated(IndexSet::kMemory, chain_[1])));
  ASSERT_TRUE(client.Send(worker.Digest(IndexSet::kMemory)));
  ASSERT_TRUE(client.AwaitApplied(4));
  EXPECT_EQ(Matched(chain_), 1u * kBlockTokens);
  client.CloseWrites();
  EXPECT_EQ(client.Next(), "end");
  EXPECT_TRUE(client.Finish().ok());
  // The index stays while the worker lives.
  EXPECT_EQ(Matched(chain_), 1u * kBlockTokens);
}

TEST_F(ReportStreamTest, GapIsHealedByASnapshot) {
  ScriptedWorker worker("a");
  ReportClient client(*stub_);
  client.GoLive(worker);
  worker.Stored(IndexSet::kMemory, root_, std::span(chain_).first(2));  // never sent
  ASSERT_TRUE(client.Send(worker.Stored(IndexSet::kMemory, root_, chain_, 2)));
  EXPECT_EQ(client.Next(), "resync:2");
  for (const auto& piece : worker.Snapshot(2)) ASSERT_TRUE(client.Send(piece));
  ASSERT_TRUE(client.AwaitApplied(2));
  EXPECT_EQ(Matched(chain_), 6u * kBlockTokens);
}

TEST_F(ReportStreamTest, DigestMismatchIsHealedByASnapshot) {
  ScriptedWorker worker("a");
  ReportClient client(*stub_);
  client.GoLive(worker);
  ASSERT_TRUE(client.Send(worker.Stored(IndexSet::kMemory, root_, chain_)));
  ASSERT_TRUE(client.AwaitApplied(1));
  worker.set(IndexSet::kMemory).Truncate(chain_[3]);
  ASSERT_TRUE(client.Send(worker.Digest(IndexSet::kMemory)));
  EXPECT_EQ(client.Next(), "resync:3");
  for (const auto& piece : worker.Snapshot()) ASSERT_TRUE(client.Send(piece));
  ASSERT_TRUE(client.AwaitApplied(2));
  EXPECT_EQ(Matched(chain_), 3u * kBlockTokens);
  EXPECT_EQ(ListWorkers().workers(0).resyncs(), 2u);
}

TEST_F(ReportStreamTest, RestartGoesDarkAtOnce) {
  ScriptedWorker worker("a", 1);
  auto client = std::make_unique<ReportClient>(*stub_);
  client->GoLive(worker);
  ASSERT_TRUE(client->Send(worker.Stored(IndexSet::kMemory, root_, chain_)));
  ASSERT_TRUE(client->AwaitApplied(1));
  ScriptedWorker restarted("a", 2);
  ReportClient second(*stub_);
  ASSERT_TRUE(second.Send(restarted.Register()));
  EXPECT_EQ(second.Next(), "registered");
  EXPECT_EQ(second.Next(), "resync:1");
  EXPECT_EQ(Matched(chain_), 0u);
  // The old process' stream ends with its next word, its heartbeats are refused.
  client->Send(worker.Digest(IndexSet::kMemory));
  EXPECT_EQ(client->Next(), "end");
  EXPECT_EQ(client->Finish().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Beat(worker).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Beat(restarted).ok());
  for (const auto& piece : restarted.Snapshot()) ASSERT_TRUE(second.Send(piece));
  ASSERT_TRUE(second.AwaitApplied(0));
}

TEST_F(ReportStreamTest, WorkerWithoutHeartbeatsIsLostUntilItRegistersAgain) {
  ScriptedWorker worker("a");
  ScriptedWorker other("b", 2);
  ReportClient client(*stub_);
  ReportClient other_client(*stub_);
  client.GoLive(worker);
  other_client.GoLive(other);
  ASSERT_TRUE(client.Send(worker.Stored(IndexSet::kMemory, root_, chain_)));
  ASSERT_TRUE(client.AwaitApplied(1));
  EXPECT_EQ(Matched(chain_), 6u * kBlockTokens);
  for (int i = 0; i < 4; ++i) {
    Advance(absl::Seconds(1));
    ASSERT_TRUE(Beat(other, 5).ok());
  }
  ASSERT_TRUE(Await(kTestPatience, [&] { return ListWorkers().workers(0).state() == v1::WorkerStatus::STATE_LOST; }));
  EXPECT_EQ(ListWorkers().workers(1).state(), v1::WorkerStatus::STATE_READY);
  EXPECT_EQ(ListWorkers().workers(1).queued_tokens(), 5u);
  EXPECT_EQ(Matched(chain_), 0u);
  EXPECT_EQ(Beat(worker).code(), absl::StatusCode::kAborted);
  // It registers again, here on the stream that it still has.
  ASSERT_TRUE(client.Send(worker.Register()));
  EXPECT_EQ(client.Next(), "registered");
  EXPECT_EQ(client.Next(), "resync:1");
  for (const auto& piece : worker.Snapshot()) ASSERT_TRUE(client.Send(piece));
  ASSERT_TRUE(client.AwaitApplied(1));
  EXPECT_TRUE(Beat(worker).ok());
  EXPECT_EQ(Matched(chain_), 6u * kBlockTokens);
}

TEST_F(ReportStreamTest, ReconnectGoesOnWithoutASnapshot) {
  ScriptedWorker worker("a");
  {
    ReportClient client(*stub_);
    client.GoLive(worker);
    ASSERT_TRUE(client.Send(worker.Stored(IndexSet::kMemory, root_, std::span(chain_).first(3))));
    ASSERT_TRUE(client.AwaitApplied(1));
  }
  ReportClient client(*stub_);
  ASSERT_TRUE(client.Send(worker.Register()));
  EXPECT_EQ(client.Next(), "registered");
  EXPECT_EQ(client.Next(), "applied:1");
  ASSERT_TRUE(client.Send(worker.Stored(IndexSet::kMemory, root_, chain_, 3)));
  ASSERT_TRUE(client.AwaitApplied(2));
  EXPECT_EQ(Matched(chain_), 6u * kBlockTokens);
}

TEST_F(ReportStreamTest, MalformedRegistrationEndsTheStreamAndNamesTheField) {
  ScriptedWorker worker("a");
  worker.info().set_block_tokens(0);
  ReportClient client(*stub_);
  ASSERT_TRUE(client.Send(worker.Register()));
  EXPECT_EQ(client.Next(), "end");
  const absl::Status status = client.Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("block_tokens"));
}

// One worker does not read what it is sent: it may hold up nobody.
TEST_F(ReportStreamTest, StalledStreamHoldsUpNobody) {
  ScriptedWorker stalled("stalled", 1);
  ReportClient stalled_client(*stub_);
  stalled_client.GoLive(stalled);
  ScriptedWorker worker("worker", 2);
  ReportClient client(*stub_);
  client.GoLive(worker);
  v1::DrainRequest drain;
  drain.set_worker_id("stalled");
  drain.set_draining(true);
  v1::DrainResponse drained;
  uint64_t sequence = 0;
  for (int round = 0; round < 300; ++round) {
    ASSERT_TRUE(Call(&v1::Coordinator::Stub::Drain, drain, &drained).ok());
    ASSERT_TRUE(client.Send(worker.Stored(IndexSet::kMemory, root_, chain_)));
    ++sequence;
  }
  ASSERT_TRUE(client.AwaitApplied(sequence));
  EXPECT_EQ(Matched(chain_), 6u * kBlockTokens);
}

TEST_F(ReportStreamTest, StopEndsOpenStreamsAtOnce) {
  ScriptedWorker worker("a");
  ReportClient client(*stub_);
  client.GoLive(worker);
  const absl::Time start = absl::Now();
  server_->Stop(absl::Seconds(30));
  EXPECT_LT(absl::Now() - start, absl::Seconds(20));
  EXPECT_EQ(client.Next(), "end");
  EXPECT_FALSE(client.Finish().ok());
}

class ReportStreamLimitsTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    CoordinatorTest::SetUp();
    options_.registry.max_workers = 1;  // hence 2 streams
    options_.registration_timeout = absl::Seconds(2);
    Start();
  }
  bool AwaitMetric(const std::string& line) {
    return Await(kTestPatience, [&] { return server_->MetricsText().find("\n" + line + "\n") != std::string::npos; });
  }
};

TEST_F(ReportStreamLimitsTest, StreamsAreBoundedAndThoseThatDoNotRegisterEnd) {
  ReportClient first(*stub_);
  ReportClient second(*stub_);
  ASSERT_TRUE(AwaitMetric("kvmesh_coordinator_report_streams 2"));
  ReportClient third(*stub_);
  EXPECT_EQ(third.Next(), "end");
  const absl::Status refused = third.Finish();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the limit of 2 open streams"));
  EXPECT_TRUE(AwaitMetric("kvmesh_coordinator_calls_refused_total{limit=\"report_streams\"} 1"));
  Advance(absl::Seconds(2));
  for (ReportClient* client : {&first, &second}) {
    EXPECT_EQ(client->Next(), "end");
    EXPECT_EQ(client->Finish().code(), absl::StatusCode::kCancelled);
  }
  EXPECT_TRUE(AwaitMetric("kvmesh_coordinator_streams_unregistered_total 2"));
  EXPECT_TRUE(AwaitMetric("kvmesh_coordinator_report_streams 0"));
}

TEST_F(ReportStreamLimitsTest, RegisteredStreamsStay) {
  ScriptedWorker worker("a");
  ReportClient client(*stub_);
  client.GoLive(worker);
  ReportClient silent(*stub_);
  ASSERT_TRUE(AwaitMetric("kvmesh_coordinator_report_streams 2"));
  Advance(absl::Seconds(2));
  ASSERT_TRUE(Beat(worker).ok());
  EXPECT_EQ(silent.Next(), "end");
  ASSERT_TRUE(client.Send(worker.Stored(IndexSet::kMemory, root_, chain_)));
  EXPECT_TRUE(client.AwaitApplied(1));
}

}  // namespace
}  // namespace kvmesh
