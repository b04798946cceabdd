// Processes that die, stop or come back in the middle of work, and wires that lie: answers stay right, nothing leaks,
// and the coordinator's view becomes the workers' again.
#include <signal.h>

#include <future>

#include "tests/system/fault_fixture.h"

namespace kvmesh {
namespace {

using Answer = absl::StatusOr<ClusterGenerateResult>;

std::future<Answer> AskLater(ProcessCluster& cluster, const Prompt& prompt, const AskOptions& options) {
  return std::async(std::launch::async, [&cluster, &prompt, options] { return Ask(cluster, prompt, options); });
}

TEST_F(FaultTest, ServingPeerKilledDuringFetchIsRecomputed) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(ThreeWorkers()));
  for (uint64_t round = 0; round < rounds_; ++round) {
    const std::string salt = absl::StrCat("killed peer ", round);
    const Prompt& prompt = prompts_[round % prompts_.size()];
    BeginLoad(round);
    ASSERT_NO_FATAL_FAILURE(Fill(0, prompt, salt));
    cluster_->proxy(0).Arm(TcpProxy::Fault::kStall, kIntoTheFetch);
    std::future<Answer> asked = AskLater(*cluster_, prompt, {.salt = salt, .worker_id = cluster_->worker_id(1)});
    EXPECT_TRUE(cluster_->proxy(0).AwaitFired(absl::Seconds(10)));
    cluster_->worker(0).Kill();
    cluster_->proxy(0).Disarm();
    const Answer answer = asked.get();
    EXPECT_TRUE(answer.ok()) << answer.status();
    ASSERT_TRUE(cluster_->StartWorker(0));
    ASSERT_NO_FATAL_FAILURE(Settle()) << "round " << round;
  }
  ExpectDiskServesAfterRestart(1);
}

TEST_F(FaultTest, RequestingWorkerKilledDuringFetchLeavesNothingAtThePeer) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(ThreeWorkers()));
  for (uint64_t round = 0; round < rounds_; ++round) {
    const std::string salt = absl::StrCat("killed requester ", round);
    const Prompt& prompt = prompts_[round % prompts_.size()];
    BeginLoad(round);
    ASSERT_NO_FATAL_FAILURE(Fill(0, prompt, salt));
    cluster_->proxy(0).Arm(TcpProxy::Fault::kStall, kIntoTheFetch);
    std::future<Answer> asked = AskLater(*cluster_, prompt, {.salt = salt, .worker_id = cluster_->worker_id(1)});
    EXPECT_TRUE(cluster_->proxy(0).AwaitFired(absl::Seconds(10)));
    cluster_->worker(1).Kill();
    cluster_->proxy(0).Disarm();
    const absl::Time killed = absl::Now();
    const Answer answer = asked.get();
    // It may have been the load's fetch that was hit, and this one already over.
    EXPECT_TRUE(answer.ok() || absl::IsUnavailable(answer.status()) || absl::IsNotFound(answer.status()))
        << answer.status();
    EXPECT_LT(absl::Now() - killed, absl::Seconds(10));
    ASSERT_TRUE(cluster_->StartWorker(1));
    ASSERT_NO_FATAL_FAILURE(Settle()) << "round " << round;
  }
  ExpectDiskServesAfterRestart(0);
}

TEST_F(FaultTest, WorkersReportAgainToARestartedCoordinator) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(ThreeWorkers()));
  for (uint64_t round = 0; round < rounds_; ++round) {
    const std::string salt = absl::StrCat("coordinator ", round);
    const Prompt& prompt = prompts_[round % prompts_.size()];
    BeginLoad(round);
    ASSERT_NO_FATAL_FAILURE(Fill(0, prompt, salt));
    cluster_->coordinator().Kill();
    for (size_t i = 0; i < cluster_->size(); ++i) {
      const auto tokens = AskDirectly(*cluster_, i, prompt, salt);
      ASSERT_TRUE(tokens.ok()) << tokens.status();
      EXPECT_EQ(*tokens, prompt.answer);
    }
    ASSERT_TRUE(cluster_->StartCoordinator());
    ASSERT_TRUE(cluster_->AwaitAllReady(absl::Seconds(10)));
    AwaitHolder(0, prompt, salt);
    ASSERT_NO_FATAL_FAILURE(Settle()) << "round " << round;
  }
  ExpectDiskServesAfterRestart(2);
}

TEST_F(FaultTest, RestartedWorkerIsListedOnceAndServesAsItsNewIncarnation) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(ThreeWorkers()));
  for (uint64_t round = 0; round < rounds_; ++round) {
    const std::string salt = absl::StrCat("restart ", round);
    const Prompt& prompt = prompts_[round % prompts_.size()];
    BeginLoad(round);
    ASSERT_NO_FATAL_FAILURE(Fill(0, prompt, salt));
    const auto before = cluster_->Stats(0);
    ASSERT_TRUE(before.ok()) << before.status();
    cluster_->worker(0).Kill();
    ASSERT_TRUE(cluster_->StartWorker(0));
    ASSERT_TRUE(cluster_->AwaitReady(0));
    const auto after = cluster_->Stats(0);
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_NE(before->incarnation(), after->incarnation());
    const auto listed = cluster_->client().ListWorkers();
    ASSERT_TRUE(listed.ok()) << listed.status();
    EXPECT_EQ(listed->workers_size(), 3) << listed->DebugString();
    // Its memory is gone, whatever the index said; what it computes now is pulled from it again.
    ASSERT_NO_FATAL_FAILURE(Fill(0, prompt, salt));
    const Answer answer = Ask(*cluster_, prompt, {.salt = salt, .worker_id = cluster_->worker_id(1)});
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_GT(answer->hits.peer(), 0u) << answer->hits.ShortDebugString();
    ASSERT_NO_FATAL_FAILURE(Settle()) << "round " << round;
  }
  ExpectDiskServesAfterRestart(0);
}

TEST_F(FaultTest, StoppedPeerDelaysARequestToItsDeadlineAtMost) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(ThreeWorkers()));
  for (uint64_t round = 0; round < rounds_; ++round) {
    const std::string salt = absl::StrCat("stopped ", round);
    const Prompt& prompt = prompts_[round % prompts_.size()];
    BeginLoad(round);
    ASSERT_NO_FATAL_FAILURE(Fill(0, prompt, salt));
    cluster_->worker(0).Signal(SIGSTOP);
    const absl::Time began = absl::Now();
    std::future<Answer> patient = AskLater(*cluster_, prompt, {.salt = salt, .worker_id = cluster_->worker_id(1)});
    const Answer hasty = Ask(*cluster_, prompt,
                             {.salt = salt, .worker_id = cluster_->worker_id(2), .timeout = absl::Milliseconds(1500)});
    EXPECT_LT(absl::Now() - began, absl::Seconds(4));
    EXPECT_TRUE(hasty.ok() || absl::IsDeadlineExceeded(hasty.status())) << hasty.status();
    const Answer answer = patient.get();
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_LT(absl::Now() - began, absl::Seconds(12));
    cluster_->worker(0).Signal(SIGCONT);
    ASSERT_NO_FATAL_FAILURE(Settle()) << "round " << round;
  }
  ExpectDiskServesAfterRestart(1);
}

TEST_F(FaultTest, ByteFlippedOnTheWireIsAMissAndIsRecomputed) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(ThreeWorkers()));
  for (uint64_t round = 0; round < rounds_; ++round) {
    const std::string salt = absl::StrCat("wire ", round);
    const Prompt& prompt = prompts_[round % prompts_.size()];
    ASSERT_NO_FATAL_FAILURE(Fill(0, prompt, salt));
    const auto before = cluster_->Stats(1);
    ASSERT_TRUE(before.ok()) << before.status();
    // No load: the byte is one of this fetch.
    cluster_->proxy(0).Arm(TcpProxy::Fault::kFlipByte, kIntoTheFetch + round * 1000);
    const Answer answer = Ask(*cluster_, prompt, {.salt = salt, .worker_id = cluster_->worker_id(1)});
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(cluster_->proxy(0).AwaitFired(absl::ZeroDuration()));
    cluster_->proxy(0).Disarm();
    const auto after = cluster_->Stats(1);
    ASSERT_TRUE(after.ok()) << after.status();
    uint64_t counted = 0;
    for (const auto& [reason, tokens] : after->misses_by_reason()) {
      const auto old = before->misses_by_reason().find(reason);
      if (reason.rfind("fetch_", 0) == 0) {
        counted += tokens - (old == before->misses_by_reason().end() ? 0 : old->second);
      }
    }
    EXPECT_GT(counted, 0u) << after->ShortDebugString();
    BeginLoad(round);
    ASSERT_TRUE(Await(absl::Seconds(10), [this] { return load_->answered() >= 10; }));
    ASSERT_NO_FATAL_FAILURE(Settle()) << "round " << round;
  }
  ExpectDiskServesAfterRestart(1);
}

TEST_F(FaultTest, ConnectionCutDuringFetchIsAMissAndIsRecomputed) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(ThreeWorkers()));
  for (uint64_t round = 0; round < rounds_; ++round) {
    const std::string salt = absl::StrCat("cut ", round);
    const Prompt& prompt = prompts_[round % prompts_.size()];
    BeginLoad(round);
    ASSERT_NO_FATAL_FAILURE(Fill(0, prompt, salt));
    cluster_->proxy(0).Arm(TcpProxy::Fault::kCut, kIntoTheFetch);
    const Answer answer = Ask(*cluster_, prompt, {.salt = salt, .worker_id = cluster_->worker_id(1)});
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(cluster_->proxy(0).AwaitFired(absl::Seconds(10)));
    ASSERT_NO_FATAL_FAILURE(Settle()) << "round " << round;
  }
  ExpectDiskServesAfterRestart(1);
}

TEST_F(FaultTest, KilledClientsSequencesClose) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(ThreeWorkers()));
  for (uint64_t round = 0; round < rounds_; ++round) {
    BeginLoad(round);
    auto client =
        ChildProcess::Start({absl::StrCat(KVMESH_SYSTEM_TEST_DIR, "/system_dying_client"), cluster_->address(0)},
                            cluster_->folder() / absl::StrCat("client-", round, ".log"));
    ASSERT_TRUE(client.ok()) << client.status();
    ASSERT_TRUE(Await(absl::Seconds(10), [&] { return (*client)->LogTail() == "open\n" || !(*client)->Running(); }));
    ASSERT_TRUE((*client)->Running());
    const auto books = cluster_->DebugState(0);
    ASSERT_TRUE(books.ok()) << books.status();
    EXPECT_GE(books->open_sequences(), 2u);
    EXPECT_EQ(books->sessions(), 1u);
    (*client)->Kill();
    EXPECT_TRUE(Await(absl::Seconds(5), [this] {
      const auto now = cluster_->DebugState(0);
      return now.ok() && now->open_sequences() == 0 && now->sessions() == 0;
    })) << "the sequences of a dead client are open still";
    ASSERT_NO_FATAL_FAILURE(Settle()) << "round " << round;
  }
  ExpectDiskServesAfterRestart(0);
}

}  // namespace
}  // namespace kvmesh
