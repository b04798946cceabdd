#include "worker/report/reporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <random>
#include <thread>

#include "tests/support/log_waiter.h"
#include "tests/unit/worker/report/report_world.h"

namespace kvmesh {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// An end that takes this long was not prompt.
constexpr absl::Duration kPrompt = absl::Seconds(4);

class ReporterTest : public testing::Test {
 protected:
  void Start(Reporter::Options options = {}) {
    if (options.coordinator_address.empty()) options.coordinator_address = coordinator_.address();
    options.make_channel = TestChannel;
    options.store = world_->store.get();
    options.worker_info = [this] {
      v1::WorkerInfo info;
      info.set_worker_id("worker");
      info.set_incarnation(std::string(16, 'i'));
      info.set_draining(draining_);
      return info;
    };
    options.handler = &handler_;
    options.executor = &executor_;
    options.backoff = {.min = absl::Milliseconds(5), .max = absl::Milliseconds(20)};
    reporter_.emplace(std::move(options));
  }
  void MakeStore(const TestStoreOptions& options) { world_.emplace(options); }

  // All that happened has reached the coordinator, and it believes what is true.
  void ExpectInStep() {
    const uint64_t last = world_->store->events().last();
    ASSERT_TRUE(coordinator_.Await([last](const auto& s) { return s.live && s.applied >= last; }));
    ASSERT_TRUE(reporter_->WaitApplied(last, kTestPatience));
    ExpectEqualSets(world_->store->TakeCut(), coordinator_.model().sets());
  }
  void StopPromptly() {
    const absl::Time begin = absl::Now();
    reporter_->Stop();
    EXPECT_LT(absl::Now() - begin, kPrompt);
  }

  const RootKey root_ = TestRoot(1);
  std::atomic<bool> draining_{false};
  FakeCoordinator coordinator_;
  TestHandler handler_;
  ThreadPool executor_{2};
  std::optional<TestStore> world_{std::in_place};
  std::optional<Reporter> reporter_;
};

TEST_F(ReporterTest, RegistersAndTellsWhatIsHeldAndWhatChanges) {
  world_->Seal(root_, TestChain(root_, 0, 5));
  draining_ = true;
  Start();
  ExpectInStep();
  const auto state = coordinator_.state();
  ASSERT_EQ(state.registrations.size(), 1u);
  EXPECT_EQ(state.registrations[0].worker_id(), "worker");
  EXPECT_TRUE(state.registrations[0].draining());
  EXPECT_EQ(state.pieces, 1u);
  world_->Seal(root_, TestChain(root_, 0, 9));
  LossyFormats lossy;
  lossy.Add(KvFormat::kBf16);
  world_->Seal(TestRoot(2), TestChain(TestRoot(2), 0, 3), lossy);
  ExpectInStep();
  world_->store->EraseIdentity(root_);
  ExpectInStep();
  EXPECT_EQ(coordinator_.state().pieces, 1u);
  EXPECT_EQ(coordinator_.state().snapshots, 1u);
  EXPECT_EQ(reporter_->counters().registrations, 1u);
  EXPECT_TRUE(reporter_->counters().registered);
  reporter_->Stop();
  EXPECT_FALSE(reporter_->counters().registered);
  EXPECT_EQ(reporter_->counters().snapshots_sent, 1u);
  EXPECT_EQ(reporter_->counters().events_sent, coordinator_.state().events);
}

TEST_F(ReporterTest, EventsGoInBatches) {
  Start({.feed = {.batch_events = 8}});
  ExpectInStep();
  coordinator_.read_gate.Close();
  for (uint32_t branch = 0; branch < 10; ++branch) world_->Seal(root_, TestChain(root_, branch, 4));
  coordinator_.read_gate.Open();
  ExpectInStep();
  EXPECT_LE(coordinator_.state().largest_batch, 8u);
  EXPECT_GT(coordinator_.state().largest_batch, 1u);
}

TEST_F(ReporterTest, DigestsFollowChangesAndThenCease) {
  Start({.feed = {.digest_interval = absl::Milliseconds(20)}});
  ExpectInStep();
  EXPECT_EQ(coordinator_.state().digests, 0u);
  world_->Seal(root_, TestChain(root_, 0, 4));
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.digests == 3; }));
  const uint64_t last = world_->store->events().last();
  EXPECT_FALSE(LogWaiter(world_->store->events()).AwaitAfter(last, absl::Milliseconds(200)))
      << "digests without a change";
}

TEST_F(ReporterTest, AnEventAloneWakesAnIdleReporter) {
  Start({.feed = {.digest_interval = absl::Hours(1)}});
  for (uint32_t branch = 0; branch < 300; ++branch) {
    world_->Seal(root_, TestChain(root_, branch, 1));
    ASSERT_NO_FATAL_FAILURE(ExpectInStep());
  }
}

TEST_F(ReporterTest, DigestsFollowManyChangesAtOnce) {
  Start({.feed = {.digest_events = 10, .digest_interval = absl::Hours(1)}});
  ExpectInStep();
  world_->Seal(root_, TestChain(root_, 0, 20));
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.digests >= 3; }));
  ExpectInStep();
}

TEST_F(ReporterTest, SnapshotInManyPiecesThenLaterEvents) {
  for (uint32_t branch = 0; branch < 6; ++branch) world_->Seal(root_, TestChain(root_, branch, 9));
  Start({.snapshot_piece_bytes = 256});
  ExpectInStep();
  EXPECT_GT(coordinator_.state().pieces, 5u);
  world_->Seal(root_, TestChain(root_, 9, 3));
  ExpectInStep();
}

TEST_F(ReporterTest, AnEmptyWorkerSendsAnEmptySnapshot) {
  Start();
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.live; }));
  ExpectInStep();
  EXPECT_EQ(coordinator_.state().pieces, 1u);
}

TEST_F(ReporterTest, ADroppedStreamGoesOnAfterTheAppliedSequence) {
  Start();
  world_->Seal(root_, TestChain(root_, 0, 5));
  ExpectInStep();
  for (uint32_t round = 1; round <= 5; ++round) {
    coordinator_.DropStream();
    world_->Seal(root_, TestChain(root_, round, 5));
    ASSERT_TRUE(coordinator_.Await([round](const auto& s) { return s.registrations.size() == round + 1; }));
    ExpectInStep();
  }
  EXPECT_EQ(coordinator_.state().snapshots, 1u);
  EXPECT_EQ(reporter_->counters().streams_failed, 5u);
}

TEST_F(ReporterTest, AGapLeadsToASnapshot) {
  Start();
  ExpectInStep();
  coordinator_.LoseEvent(world_->store->events().last() + 3);
  world_->Seal(root_, TestChain(root_, 0, 8));
  ExpectInStep();
  EXPECT_EQ(reporter_->counters().resyncs_asked, 2u);
  EXPECT_EQ(coordinator_.state().snapshots, 2u);
  EXPECT_EQ(reporter_->counters().registrations, 1u);
}

TEST_F(ReporterTest, ARestartedCoordinatorIsToldEverythingAnew) {
  Start();
  world_->Seal(root_, TestChain(root_, 0, 5));
  ExpectInStep();
  coordinator_.Stop();
  EXPECT_FALSE(reporter_->WaitApplied(UINT64_MAX, absl::Milliseconds(50)));
  world_->Seal(root_, TestChain(root_, 1, 5));
  coordinator_.Restart(/*with_memory=*/false);
  ExpectInStep();
  EXPECT_EQ(coordinator_.state().snapshots, 2u);
}

TEST_F(ReporterTest, ALogThatOverflowedLeadsToASnapshot) {
  MakeStore({.event_capacity = 16});
  Start();
  world_->Seal(root_, TestChain(root_, 0, 2));
  ExpectInStep();
  coordinator_.Stop();
  world_->Seal(root_, TestChain(root_, 1, 20));
  coordinator_.Restart(/*with_memory=*/true);
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.pieces == 2; }));
  ExpectInStep();
  // Twice when the old stream had not ended yet as the log overflowed.
  EXPECT_GE(reporter_->counters().fell_behind, 1u);
  EXPECT_LE(reporter_->counters().fell_behind, 2u);
  EXPECT_EQ(reporter_->counters().resyncs_asked, 1u) << "the first registration's only";
}

TEST_F(ReporterTest, ACoordinatorAheadOfTheLogIsGivenASnapshot) {
  Start();
  world_->Seal(root_, TestChain(root_, 0, 6));
  ExpectInStep();
  reporter_.reset();
  world_.emplace();  // as the same incarnation, which no worker does
  Start();
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.pieces == 2; }));
  ExpectInStep();
}

TEST_F(ReporterTest, ReconnectRegistersAnewUnlessThatHappenedAlready) {
  Start();
  ExpectInStep();
  reporter_->Reconnect(0);
  EXPECT_EQ(reporter_->registration(), 1u);
  reporter_->Reconnect(1);
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.registrations.size() == 2; }));
  world_->Seal(root_, TestChain(root_, 0, 4));
  ExpectInStep();
  EXPECT_EQ(reporter_->registration(), 2u);
  reporter_->Reconnect(1);
  world_->Seal(root_, TestChain(root_, 1, 4));
  ExpectInStep();
  EXPECT_EQ(coordinator_.state().registrations.size(), 2u);
  EXPECT_EQ(reporter_->counters().streams_failed, 0u);
}

TEST_F(ReporterTest, ARegistrationWithoutAnAnswerIsTriedAgain) {
  coordinator_.SetMute(true);
  Start({.register_timeout = absl::Milliseconds(50)});
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.registrations.size() >= 3; }));
  EXPECT_FALSE(reporter_->counters().registered);
  coordinator_.SetMute(false);
  ExpectInStep();
}

TEST_F(ReporterTest, CommandsReachTheHandlerAndTheirResultsGoBack) {
  Start();
  ExpectInStep();
  v1::Command command;
  command.set_id(1);
  command.mutable_pin()->set_pin_id("p");
  coordinator_.SendCommand(command);
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.results.size() == 1; }));
  command.set_id(2);
  command.mutable_unpin()->set_pin_id("p");
  coordinator_.SendCommand(command);
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.results.size() == 2; }));
  handler_.SetAnswer(absl::NotFoundError("no such root"));
  command.set_id(3);
  command.mutable_clear_identity()->set_root("r");
  coordinator_.SendCommand(command);
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.results.size() == 3; }));
  command.set_id(4);
  command.mutable_drain()->set_draining(true);
  coordinator_.SendCommand(command);
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.results.size() == 4; }));
  command.Clear();
  command.set_id(5);
  coordinator_.SendCommand(command);
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.results.size() == 5; }));

  EXPECT_THAT(handler_.orders(), ElementsAre("pin p", "unpin p", "clear r", "drain"));
  const std::vector<v1::CommandResult> results = coordinator_.state().results;
  EXPECT_EQ(results[0].id(), 1u);
  EXPECT_EQ(results[0].code(), grpc::StatusCode::OK);
  EXPECT_EQ(results[0].blocks(), 7u);
  EXPECT_EQ(results[2].code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(results[2].message(), "no such root");
  EXPECT_EQ(results[4].id(), 5u);
  EXPECT_EQ(results[4].code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(ReporterTest, ASlowPrefetchHoldsUpNeitherEventsNorOtherCommands) {
  Start({.max_commands = 2});
  ExpectInStep();
  handler_.prefetch_gate.Close();
  v1::Command command;
  command.set_id(1);
  command.mutable_prefetch()->set_root("r");
  coordinator_.SendCommand(command);
  ASSERT_TRUE(handler_.prefetch_gate.AwaitWaiting(1));
  world_->Seal(root_, TestChain(root_, 0, 4));
  ExpectInStep();
  command.set_id(2);
  command.mutable_drain()->set_draining(true);
  coordinator_.SendCommand(command);
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.results.size() == 1; }));
  command.set_id(3);
  command.mutable_prefetch()->set_root("s");
  coordinator_.SendCommand(command);
  ASSERT_TRUE(handler_.prefetch_gate.AwaitWaiting(2));
  command.set_id(4);
  coordinator_.SendCommand(command);
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.results.size() == 2; }));
  handler_.prefetch_gate.Open();
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.results.size() == 4; }));
  const std::vector<v1::CommandResult> results = coordinator_.state().results;
  EXPECT_EQ(results[0].id(), 2u);
  EXPECT_EQ(results[1].id(), 4u);
  EXPECT_EQ(results[1].code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(results[1].message(), HasSubstr("commands"));
  EXPECT_THAT((std::vector<uint64_t>{results[2].id(), results[3].id()}), UnorderedElementsAre(1, 3));
  EXPECT_EQ(reporter_->counters().commands.refused, 1u);
  EXPECT_EQ(reporter_->counters().commands.submitted, 4u);
}

TEST_F(ReporterTest, ResultsDoNotOutliveTheStreamThatBroughtTheCommand) {
  Start();
  ExpectInStep();
  handler_.prefetch_gate.Close();
  v1::Command command;
  command.set_id(1);
  command.mutable_prefetch()->set_root("r");
  coordinator_.SendCommand(command);
  ASSERT_TRUE(handler_.prefetch_gate.AwaitWaiting(1));
  coordinator_.DropStream();
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.registrations.size() == 2; }));
  handler_.prefetch_gate.Open();
  command.set_id(2);
  command.mutable_drain()->set_draining(true);
  coordinator_.SendCommand(command);
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return !s.results.empty(); }));
  EXPECT_EQ(coordinator_.state().results[0].id(), 2u);
}

TEST_F(ReporterTest, StopsPromptlyWhileIdle) {
  Start();
  ExpectInStep();
  StopPromptly();
  EXPECT_FALSE(reporter_->WaitApplied(UINT64_MAX, absl::Hours(1)));
}

TEST_F(ReporterTest, StopsPromptlyWhileNobodyListens) {
  coordinator_.Stop();
  Start();
  ASSERT_TRUE(Await(kTestPatience, [this] { return reporter_->counters().streams_failed > 0; }));
  StopPromptly();
}

TEST_F(ReporterTest, StopsPromptlyWhileConnectingToASilentPeer) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(socket, 8), 0);
  const timeval patience = absl::ToTimeval(kTestPatience);
  ASSERT_EQ(setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
  ASSERT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  Start({.coordinator_address = absl::StrCat("127.0.0.1:", ntohs(address.sin_port))});
  const int accepted = accept(socket, nullptr, nullptr);  // it is connecting now
  ASSERT_GE(accepted, 0);
  StopPromptly();
  close(accepted);
  close(socket);
}

TEST_F(ReporterTest, StopsPromptlyWhileTheRegistrationIsNotAnswered) {
  coordinator_.SetMute(true);
  Start();
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.registrations.size() == 1; }));
  StopPromptly();
}

TEST_F(ReporterTest, StopsPromptlyWhileTheCoordinatorDoesNotRead) {
  Start();
  ExpectInStep();
  coordinator_.read_gate.Close();
  AppendUntilBlocked(*world_->store, *reporter_);
  EXPECT_LT(reporter_->counters().events_sent, world_->store->events().last());
  StopPromptly();
  coordinator_.read_gate.Open();
}

TEST_F(ReporterTest, StopDoesNotWaitForOrdersButTheDestructorDoes) {
  Start();
  ExpectInStep();
  handler_.prefetch_gate.Close();
  v1::Command command;
  command.mutable_prefetch()->set_root("r");
  coordinator_.SendCommand(command);
  ASSERT_TRUE(handler_.prefetch_gate.AwaitWaiting(1));
  StopPromptly();
  EXPECT_TRUE(handler_.orders().empty());
  handler_.prefetch_gate.Open();
  reporter_.reset();
  EXPECT_THAT(handler_.orders(), ElementsAre("prefetch r"));
}

// Whatever happens to the stream, the coordinator ends up believing what is true.
TEST_F(ReporterTest, StaysInStepThroughRandomChangesAndFaults) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  MakeStore({.device_slots = 12, .host_slots = 6, .disk_blocks = 20, .event_capacity = 256});
  FakeCoordinator second;
  Start({.feed = {.batch_events = 7, .digest_events = 40, .digest_interval = absl::Milliseconds(5)},
         .snapshot_piece_bytes = 256});
  Reporter::Options options{.coordinator_address = second.address(),
                            .make_channel = TestChannel,
                            .store = world_->store.get(),
                            .worker_info = [] { return v1::WorkerInfo(); },
                            .handler = &handler_,
                            .executor = &executor_};
  Reporter second_reporter(options);
  for (int step = 0; step < 600; ++step) {
    const RootKey root = TestRoot(random() % 3);
    switch (random() % 24) {
      case 0:
        world_->store->EraseIdentity(root);
        break;
      case 1:
        coordinator_.DropStream();
        break;
      case 2:
        coordinator_.LoseEvent(world_->store->events().last() + random() % 5);
        break;
      case 3:
        if (random() % 8 == 0) {
          coordinator_.Stop();
          coordinator_.Restart(random() % 2 == 0);
        }
        break;
      case 4:
        ExpectInStep();
        break;
      default:
        world_->Seal(root, TestChain(root, random() % 4, 1 + random() % 8));
    }
  }
  coordinator_.LoseEvent(0);
  ExpectInStep();
  const uint64_t last = world_->store->events().last();
  ASSERT_TRUE(second.Await([last](const auto& s) { return s.live && s.applied >= last; }));
  ExpectEqualSets(world_->store->TakeCut(), second.model().sets());
  second_reporter.Stop();
}

}  // namespace
}  // namespace kvmesh
