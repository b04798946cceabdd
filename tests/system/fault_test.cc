// Processes that die, stop or come back in the middle of work, and wires that lie: answers stay right, nothing leaks,
// and the coordinator's view becomes the workers' again.
#include <signal.h>

#include <future>

#include "tests/system/fault_fixture.h"

namespace kvmesh {
namespace {

using Answer = absl::StatusOr<ClusterGenerateResult>;

class PeerFaultTest : public FaultTest {
 protected:
  Answer AskFor(const Round& round, size_t worker, absl::Duration timeout = AskOptions().timeout) {
    return Ask(*cluster_, round.prompt,
               {.salt = round.salt, .worker_id = cluster_->worker_id(worker), .timeout = timeout});
  }
  // `round` outlives the answer.
  std::future<Answer> AskLater(const Round& round, size_t worker) {
    return std::async(std::launch::async, [this, &round, worker] { return AskFor(round, worker); });
  }
  // Worker 1 pulls the round's prompt from worker 0, and `victim` is killed in the middle of it.
  std::future<Answer> KillDuringFetch(const Round& round, size_t victim) {
    cluster_->proxy(0).Arm(TcpProxy::Fault::kStall, kIntoTheFetch);
    std::future<Answer> asked = AskLater(round, 1);
    EXPECT_TRUE(cluster_->proxy(0).AwaitFired(absl::Seconds(10)));
    cluster_->worker(victim).Kill();
    cluster_->proxy(0).Disarm();
    return asked;
  }
  // Tokens that worker 1 has missed because fetches failed: all, or those of one reason.
  uint64_t FetchMisses(const std::string& reasons = "fetch_") {
    const auto stats = cluster_->Stats(1);
    EXPECT_TRUE(stats.ok()) << stats.status();
    if (!stats.ok()) return 0;
    uint64_t missed = 0;
    for (const auto& [reason, tokens] : stats->misses_by_reason()) missed += reason.starts_with(reasons) ? tokens : 0;
    return missed;
  }
};

TEST_F(PeerFaultTest, ServingPeerKilledDuringFetchIsRecomputed) {
  RunRounds({.name = "killed peer", .restarted = 1}, [this](const Round& round) {
    const Answer answer = KillDuringFetch(round, 0).get();
    EXPECT_TRUE(answer.ok()) << answer.status();
    ASSERT_TRUE(cluster_->StartWorker(0));
  });
}

TEST_F(PeerFaultTest, RequestingWorkerKilledDuringFetchLeavesNothingAtThePeer) {
  RunRounds({.name = "killed requester", .restarted = 0}, [this](const Round& round) {
    std::future<Answer> asked = KillDuringFetch(round, 1);
    const absl::Time killed = absl::Now();
    const Answer answer = asked.get();
    // It may have been the load's fetch that was hit, and this one already over.
    EXPECT_TRUE(answer.ok() || absl::IsUnavailable(answer.status()) || absl::IsNotFound(answer.status()))
        << answer.status();
    EXPECT_LT(absl::Now() - killed, absl::Seconds(10));
    ASSERT_TRUE(cluster_->StartWorker(1));
  });
}

TEST_F(PeerFaultTest, WorkersReportAgainToARestartedCoordinator) {
  RunRounds({.name = "coordinator", .restarted = 2}, [this](const Round& round) {
    cluster_->coordinator().Kill();
    for (size_t i = 0; i < cluster_->size(); ++i) {
      const auto tokens = AskDirectly(*cluster_, i, round.prompt, round.salt);
      ASSERT_TRUE(tokens.ok()) << tokens.status();
      EXPECT_EQ(*tokens, round.prompt.answer);
    }
    ASSERT_TRUE(cluster_->StartCoordinator());
    ASSERT_TRUE(cluster_->AwaitAllReady(absl::Seconds(10)));
    AwaitHolder(0, round.prompt, round.salt);
  });
}

TEST_F(PeerFaultTest, RestartedWorkerIsListedOnceAndServesAsItsNewIncarnation) {
  RunRounds({.name = "restart", .restarted = 0}, [this](const Round& round) {
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
    ASSERT_NO_FATAL_FAILURE(Fill(0, round.prompt, round.salt));
    const Answer answer = AskFor(round, 1);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_GT(answer->hits.peer(), 0u) << answer->hits.ShortDebugString();
  });
}

TEST_F(PeerFaultTest, StoppedPeerDelaysARequestToItsDeadlineAtMost) {
  RunRounds({.name = "stopped", .restarted = 1}, [this](const Round& round) {
    cluster_->worker(0).Signal(SIGSTOP);
    const absl::Time began = absl::Now();
    std::future<Answer> patient = AskLater(round, 1);
    const Answer hasty = AskFor(round, 2, absl::Milliseconds(1500));
    EXPECT_LT(absl::Now() - began, absl::Seconds(4));
    EXPECT_TRUE(hasty.ok() || absl::IsDeadlineExceeded(hasty.status())) << hasty.status();
    const Answer answer = patient.get();
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_LT(absl::Now() - began, absl::Seconds(12));
    cluster_->worker(0).Signal(SIGCONT);
  });
}

TEST_F(PeerFaultTest, ByteFlippedOnTheWireIsAMissAndIsRecomputed) {
  // The byte is nearly always one of a payload, which only its checksum can tell. Elsewhere it may break a frame.
  uint64_t found_by_checksum = 0;
  // No load at first: the byte is one of this fetch.
  RunRounds({.name = "wire", .restarted = 1, .load = false}, [&](const Round& round) {
    const uint64_t missed_before = FetchMisses();
    const uint64_t damaged_before = FetchMisses("fetch_data_loss");
    cluster_->proxy(0).Arm(TcpProxy::Fault::kFlipByte, kIntoTheFetch + round.number * 1000);
    const Answer answer = AskFor(round, 1);
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(cluster_->proxy(0).AwaitFired(absl::ZeroDuration()));
    cluster_->proxy(0).Disarm();
    EXPECT_GT(FetchMisses(), missed_before);
    found_by_checksum += FetchMisses("fetch_data_loss") - damaged_before;
    BeginLoad(round.number);
    ASSERT_TRUE(Await(absl::Seconds(10), [this] { return load_->answered() >= 10; }));
  });
  EXPECT_GT(found_by_checksum, 0u);
}

TEST_F(PeerFaultTest, ConnectionCutDuringFetchIsAMissAndIsRecomputed) {
  RunRounds({.name = "cut", .restarted = 1}, [this](const Round& round) {
    cluster_->proxy(0).Arm(TcpProxy::Fault::kCut, kIntoTheFetch);
    const Answer answer = AskFor(round, 1);
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(cluster_->proxy(0).AwaitFired(absl::Seconds(10)));
  });
}

TEST_F(PeerFaultTest, KilledClientsSequencesClose) {
  RunRounds({.name = "client", .restarted = 0}, [this](const Round& round) {
    auto client =
        ChildProcess::Start({absl::StrCat(KVMESH_SYSTEM_TEST_DIR, "/system_dying_client"), cluster_->address(0)},
                            cluster_->folder() / absl::StrCat("client-", round.number, ".log"));
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
  });
}

}  // namespace
}  // namespace kvmesh
