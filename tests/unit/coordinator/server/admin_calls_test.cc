// Commands to workers, drain, lists, readiness, over a real connection.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/coordinator/server/coordinator_world.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

class AdminCallsTest : public CoordinatorTest {
 protected:
  void SetUp() override {
    CoordinatorTest::SetUp();
    Start();
    holder_.Stored(IndexSet::kMemory, root_, chain_);
  }
  // Answers the next command of `client`; runs beside the call that waits for it.
  static std::thread Answer(ReportClient& client, v1::Command& got, uint64_t blocks, int code = 0) {
    return std::thread([&client, &got, blocks, code] {
      v1::ReportResponse response;
      while (client.Receive(response)) {
        if (!response.has_command()) continue;
        got = response.command();
        v1::ReportRequest request;
        request.mutable_command_result()->set_id(got.id());
        request.mutable_command_result()->set_blocks(blocks);
        request.mutable_command_result()->set_code(code);
        client.Send(request);
        return;
      }
    });
  }
  v1::Prefix PrefixOf(std::span<const BlockKey> keys) const {
    v1::Prefix prefix;
    prefix.set_root(root_.ToString());
    prefix.set_block_keys(std::string(KeysToBytes(keys)));
    return prefix;
  }
  absl::Status Pin(const std::string& id, uint64_t ttl_ms, v1::PinResponse* response) {
    v1::PinRequest request;
    *request.mutable_prefix() = PrefixOf(chain_);
    request.set_pin_id(id);
    request.set_ttl_ms(ttl_ms);
    return Call(&v1::Coordinator::Stub::Pin, request, response);
  }

  ScriptedWorker holder_{"holder", 1};
  ScriptedWorker cold_{"cold", 2};
};

TEST_F(AdminCallsTest, PinGoesToHoldersAndSumsWhatTheyPinned) {
  ReportClient holder(*stub_);
  ReportClient cold(*stub_);
  holder.GoLive(holder_);
  cold.GoLive(cold_);
  v1::Command command;
  std::thread answer = Answer(holder, command, 6);
  v1::PinResponse response;
  const absl::Status status = Pin("p1", 1000, &response);
  answer.join();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(response.pinned_blocks(), 6u);
  EXPECT_EQ(command.pin().pin_id(), ":p1");
  EXPECT_EQ(command.pin().ttl_ms(), 1000u);
  EXPECT_EQ(command.pin().root(), root_.ToString());
  EXPECT_EQ(command.pin().block_keys().size(), 16 * chain_.size());
}

TEST_F(AdminCallsTest, PinOfWhatNobodyHoldsIsNotFound) {
  ReportClient cold(*stub_);
  cold.GoLive(cold_);
  v1::PinResponse response;
  EXPECT_EQ(Pin("p1", 1000, &response).code(), absl::StatusCode::kNotFound);
}

TEST_F(AdminCallsTest, PinArgumentsAreChecked) {
  v1::PinResponse response;
  EXPECT_THAT(std::string(Pin("", 1000, &response).message()), HasSubstr("pin_id"));
  EXPECT_THAT(std::string(Pin(std::string(129, 'p'), 1000, &response).message()), HasSubstr("pin_id"));
  EXPECT_THAT(std::string(Pin("p", 0, &response).message()), HasSubstr("ttl_ms"));
  EXPECT_THAT(std::string(Pin("p", 86'400'001, &response).message()), HasSubstr("ttl_ms"));
  v1::PinRequest request;
  request.set_pin_id("p");
  request.set_ttl_ms(1);
  const absl::Status status = Call(&v1::Coordinator::Stub::Pin, request, &response);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("prefix.identity"));
  v1::UnpinResponse unpinned;
  EXPECT_EQ(Call(&v1::Coordinator::Stub::Unpin, v1::UnpinRequest(), &unpinned).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(AdminCallsTest, FailureOfAWorkerNamesIt) {
  ReportClient holder(*stub_);
  holder.GoLive(holder_);
  v1::Command command;
  std::thread answer = Answer(holder, command, 0, static_cast<int>(absl::StatusCode::kResourceExhausted));
  v1::PinResponse response;
  const absl::Status status = Pin("p1", 1000, &response);
  answer.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("holder"));
}

TEST_F(AdminCallsTest, WorkerThatDoesNotAnswerTimesOut) {
  ReportClient holder(*stub_);
  holder.GoLive(holder_);
  absl::Status status;
  std::thread pin([&] {
    v1::PinResponse response;
    status = Pin("p1", 1000, &response);
  });
  v1::ReportResponse command;
  ASSERT_TRUE(holder.Receive(command));
  EXPECT_TRUE(command.has_command());
  for (int i = 0; i < 11; ++i) {
    Advance(absl::Seconds(1));
    ASSERT_TRUE(Beat(holder_).ok());
  }
  pin.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

// More calls than the server has threads wait, or would, for a worker that does not answer.
TEST_F(AdminCallsTest, WaitingCallsAreBoundedAndHoldUpNeitherHeartbeatsNorRoutes) {
  constexpr int kCalls = 200;  // fewer than the server's threads, all of which a burst may take at first
  auto holder = std::make_unique<ReportClient>(*stub_);
  holder->GoLive(holder_);
  v1::ClearIdentityRequest request;
  request.mutable_identity()->set_model("m");
  request.mutable_identity()->set_block_tokens(kBlockTokens);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<v1::ClearIdentityResponse> responses(kCalls);
  std::atomic<int> refused = 0, unavailable = 0, others = 0;
  for (int i = 0; i < kCalls; ++i) {
    contexts.push_back(TestContext());
    stub_->async()->ClearIdentity(contexts[i].get(), &request, &responses[i], [&](const grpc::Status& status) {
      const bool limit = status.error_message() == "calls that wait for workers: the limit of 64 calls is reached";
      if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED && limit) {
        ++refused;
      } else if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
        ++unavailable;
      } else {
        ++others;
      }
    });
  }
  EXPECT_TRUE(Await(kTestPatience, [&] { return refused == kCalls - 64; })) << refused;
  for (int i = 0; i < 20; ++i) {
    Advance(absl::Milliseconds(200));
    EXPECT_TRUE(Beat(holder_).ok());
  }
  EXPECT_EQ(Matched(chain_), 6u * kBlockTokens);
  ASSERT_EQ(ListWorkers().workers_size(), 1);
  EXPECT_EQ(ListWorkers().workers(0).state(), v1::WorkerStatus::STATE_READY);
  v1::CoordinatorStatsResponse stats;
  EXPECT_TRUE(Call(&v1::Coordinator::Stub::Stats, v1::CoordinatorStatsRequest(), &stats).ok());
  EXPECT_THAT(server_->MetricsText(), HasSubstr("kvmesh_coordinator_calls_refused_total{limit=\"waiting_calls\"} 136"));
  holder.reset();
  EXPECT_TRUE(Await(kTestPatience, [&] { return refused + unavailable + others == kCalls; }));
  EXPECT_EQ(unavailable, 64);
}

TEST_F(AdminCallsTest, WorkerWhoseStreamEndsMakesItUnavailable) {
  auto holder = std::make_unique<ReportClient>(*stub_);
  holder->GoLive(holder_);
  absl::Status status;
  std::thread pin([&] {
    v1::PinResponse response;
    status = Pin("p1", 1000, &response);
  });
  v1::ReportResponse command;
  ASSERT_TRUE(holder->Receive(command));
  holder.reset();
  pin.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(AdminCallsTest, PrefetchSendsSourcesToTheWorker) {
  ReportClient holder(*stub_);
  ReportClient cold(*stub_);
  holder.GoLive(holder_);
  cold.GoLive(cold_);
  v1::PrefetchRequest request;
  *request.mutable_prefix() = PrefixOf(chain_);
  request.set_worker_id("cold");
  v1::Command command;
  std::thread answer = Answer(cold, command, 6);
  v1::PrefetchResponse response;
  const absl::Status status = Call(&v1::Coordinator::Stub::Prefetch, request, &response);
  answer.join();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(response.blocks(), 6u);
  ASSERT_EQ(command.prefetch().sources_size(), 1);
  EXPECT_EQ(command.prefetch().sources(0).peer_id(), "holder");
  request.set_worker_id("nobody");
  EXPECT_EQ(Call(&v1::Coordinator::Stub::Prefetch, request, &response).code(), absl::StatusCode::kNotFound);
  request.set_worker_id("cold");
  *request.mutable_prefix() = PrefixOf(TestChain(root_, 5, 2));
  EXPECT_EQ(Call(&v1::Coordinator::Stub::Prefetch, request, &response).code(), absl::StatusCode::kNotFound);
}

TEST_F(AdminCallsTest, ClearIdentityAndUnpinGoToEveryWorker) {
  ReportClient holder(*stub_);
  ReportClient cold(*stub_);
  holder.GoLive(holder_);
  cold.GoLive(cold_);
  v1::ClearIdentityRequest clear;
  clear.mutable_identity()->set_model("m");
  clear.mutable_identity()->set_block_tokens(kBlockTokens);
  v1::Command first, second;
  std::thread answer_a = Answer(holder, first, 4);
  std::thread answer_b = Answer(cold, second, 0, static_cast<int>(absl::StatusCode::kNotFound));
  v1::ClearIdentityResponse cleared;
  const absl::Status status = Call(&v1::Coordinator::Stub::ClearIdentity, clear, &cleared);
  answer_a.join();
  answer_b.join();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(cleared.erased_blocks(), 4u);
  EXPECT_EQ(first.clear_identity().root().size(), 16u);
  EXPECT_EQ(first.clear_identity().root(), second.clear_identity().root());
  answer_a = Answer(holder, first, 0);
  answer_b = Answer(cold, second, 0);
  v1::UnpinRequest unpin;
  unpin.set_pin_id("p1");
  v1::UnpinResponse unpinned;
  EXPECT_TRUE(Call(&v1::Coordinator::Stub::Unpin, unpin, &unpinned).ok());
  answer_a.join();
  answer_b.join();
  EXPECT_EQ(first.unpin().pin_id(), ":p1");
  EXPECT_EQ(second.unpin().pin_id(), ":p1");
}

TEST_F(AdminCallsTest, DrainStopsPlacementsAndTellsTheWorker) {
  ReportClient holder(*stub_);
  ReportClient cold(*stub_);
  holder.GoLive(holder_);
  cold.GoLive(cold_);
  v1::DrainRequest request;
  request.set_worker_id("holder");
  request.set_draining(true);
  v1::DrainResponse response;
  v1::Command command;
  std::thread answer = Answer(holder, command, 0);
  ASSERT_TRUE(Call(&v1::Coordinator::Stub::Drain, request, &response).ok());
  answer.join();
  EXPECT_TRUE(command.drain().draining());
  v1::RouteResponse route;
  ASSERT_TRUE(Route(ByKeys(chain_), &route).ok());
  EXPECT_EQ(route.worker_id(), "cold");
  EXPECT_EQ(ListWorkers().workers(1).state(), v1::WorkerStatus::STATE_DRAINING);
  request.set_draining(false);
  ASSERT_TRUE(Call(&v1::Coordinator::Stub::Drain, request, &response).ok());
  ASSERT_TRUE(Route(ByKeys(chain_), &route).ok());
  EXPECT_EQ(route.worker_id(), "holder");
  request.set_worker_id("nobody");
  EXPECT_EQ(Call(&v1::Coordinator::Stub::Drain, request, &response).code(), absl::StatusCode::kNotFound);
  request.set_worker_id("");
  EXPECT_EQ(Call(&v1::Coordinator::Stub::Drain, request, &response).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(AdminCallsTest, ListTellsWhatTheIndexHolds) {
  holder_.info().mutable_model_identity()->set_model("m");
  ReportClient holder(*stub_);
  holder.GoLive(holder_);
  Advance(absl::Milliseconds(700));
  const v1::ListWorkersResponse list = ListWorkers();
  ASSERT_EQ(list.workers_size(), 1);
  const v1::WorkerStatus& status = list.workers(0);
  EXPECT_EQ(status.info().SerializeAsString(), holder_.info().SerializeAsString());
  EXPECT_EQ(status.state(), v1::WorkerStatus::STATE_READY);
  EXPECT_EQ(status.applied_sequence(), 1u);
  EXPECT_EQ(status.heartbeat_age_ms(), 700u);
  EXPECT_EQ(status.memory_blocks(), 6u);
  EXPECT_EQ(status.device_blocks(), 0u);
  ASSERT_EQ(status.digests_size(), 3);
  EXPECT_EQ(status.digests(1).set(), v1::BLOCK_SET_MEMORY);
  EXPECT_EQ(status.digests(1).count(), 6u);
  EXPECT_EQ(status.digests(1).sum(), holder_.set(IndexSet::kMemory).Summary().sum.ToString());
}

TEST_F(AdminCallsTest, HeartbeatsAreChecked) {
  v1::HeartbeatRequest request;
  v1::HeartbeatResponse response;
  EXPECT_THAT(std::string(Call(&v1::Coordinator::Stub::Heartbeat, request, &response).message()),
              HasSubstr("worker_id"));
  request.set_worker_id("a");
  EXPECT_THAT(std::string(Call(&v1::Coordinator::Stub::Heartbeat, request, &response).message()),
              HasSubstr("incarnation"));
  request.set_incarnation(std::string(16, 'i'));
  EXPECT_EQ(Call(&v1::Coordinator::Stub::Heartbeat, request, &response).code(), absl::StatusCode::kAborted);
  ReportClient holder(*stub_);
  holder.GoLive(holder_);
  request.set_worker_id("holder");
  request.set_incarnation(holder_.info().incarnation());
  ASSERT_TRUE(Call(&v1::Coordinator::Stub::Heartbeat, request, &response).ok());
  EXPECT_EQ(response.interval_ms(), 1000u);
}

class ReadinessTest : public AdminCallsTest {};

TEST_F(ReadinessTest, ReadyOnceEveryWorkerHasResyncedOrTheGraceHasPassed) {
  EXPECT_EQ(server_->NotReady(), "warming");
  ReportClient holder(*stub_);
  ReportClient cold(*stub_);
  holder.GoLive(holder_);
  ASSERT_TRUE(cold.Send(cold_.Register()));
  ASSERT_EQ(cold.Next(), "registered");
  ASSERT_EQ(cold.Next(), "resync:1");
  Advance(absl::Seconds(3));
  ASSERT_TRUE(Beat(holder_).ok());
  ASSERT_TRUE(Beat(cold_).ok());
  EXPECT_EQ(server_->NotReady(), "warming");
  for (const auto& piece : cold_.Snapshot()) ASSERT_TRUE(cold.Send(piece));
  ASSERT_TRUE(cold.AwaitApplied(0));
  EXPECT_TRUE(Await(kTestPatience, [&] { return server_->NotReady().empty(); }));
  server_->BeginDrain();
  EXPECT_EQ(server_->NotReady(), "draining");
}

TEST_F(ReadinessTest, GraceEndsTheWaitForWorkers) {
  EXPECT_EQ(server_->NotReady(), "warming");
  Advance(options_.warm_grace);
  EXPECT_TRUE(Await(kTestPatience, [&] { return server_->NotReady().empty(); }));
}

TEST(CoordinatorOptionsTest, FaultsNameTheField) {
  const auto expect = [](const char* field, const std::function<void(CoordinatorOptions&)>& change) {
    CoordinatorOptions options;
    options.listen = "127.0.0.1:0";
    options.tls.insecure = true;
    change(options);
    const absl::Status status = CoordinatorServer::Start(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  };
  expect("listen", [](auto& o) { o.listen = "nowhere"; });
  expect("ops_listen", [](auto& o) { o.ops_listen = "nowhere"; });
  expect("--tls-cert", [](auto& o) { o.tls.insecure = false; });
  expect("max_bytes", [](auto& o) { o.index.max_bytes = 0; });
  expect("heartbeat_interval", [](auto& o) { o.registry.heartbeat_interval = absl::ZeroDuration(); });
  expect("ticket_life", [](auto& o) { o.router.ticket_life = absl::Minutes(1); });
  expect("command_timeout", [](auto& o) { o.command_timeout = absl::ZeroDuration(); });
  expect("threads", [](auto& o) { o.threads = 0; });
  expect("max_waiting_calls", [](auto& o) { o.max_waiting_calls = 193; });
  expect("max_queued_routes", [](auto& o) { o.max_queued_routes = 0; });
  expect("registration_timeout", [](auto& o) { o.registration_timeout = absl::ZeroDuration(); });
  expect("--member-cn", [](auto& o) { o.members = {"operator"}; });
  expect("max_candidates", [](auto& o) { o.placement.max_candidates = 65; });
  expect("clock", [](auto& o) { o.clock = nullptr; });
}

TEST(CoordinatorServerTest, TakenPortIsUnavailable) {
  CoordinatorOptions options;
  options.listen = "127.0.0.1:0";
  options.tls.insecure = true;
  const auto first = CoordinatorServer::Start(options);
  ASSERT_TRUE(first.ok());
  options.listen = (*first)->address();
  EXPECT_EQ(CoordinatorServer::Start(options).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kvmesh
