#include "worker/report/heartbeater.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/unit/worker/report/report_world.h"

namespace kvmesh {
namespace {

class HeartbeaterTest : public testing::Test {
 protected:
  HeartbeaterTest()
      : reporter_({.coordinator_address = coordinator_.address(),
                   .make_channel = TestChannel,
                   .store = world_.store.get(),
                   .worker_info = [] { return v1::WorkerInfo(); },
                   .handler = &handler_,
                   .executor = &executor_}) {}

  void Start() {
    heartbeater_.emplace(Heartbeater::Options{.coordinator_address = coordinator_.address(),
                                              .make_channel = TestChannel,
                                              .load =
                                                  [this] {
                                                    v1::HeartbeatRequest request;
                                                    request.set_worker_id("worker");
                                                    request.set_queued_tokens(++loads_);
                                                    return request;
                                                  },
                                              .reporter = &reporter_,
                                              .timeout = absl::Milliseconds(500)});
  }

  FakeCoordinator coordinator_;
  TestStore world_;
  TestHandler handler_;
  ThreadPool executor_{1};
  Reporter reporter_;
  uint64_t loads_ = 0;
  std::optional<Heartbeater> heartbeater_;
};

TEST_F(HeartbeaterTest, EachHeartbeatCarriesTheLoadOfItsMoment) {
  Start();
  ASSERT_TRUE(heartbeater_->WaitAnswered(5, kTestPatience));
  const auto state = coordinator_.state();
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(state.heartbeats[i].worker_id(), "worker");
    EXPECT_EQ(state.heartbeats[i].queued_tokens(), i + 1);
  }
}

TEST_F(HeartbeaterTest, TheCoordinatorSetsTheInterval) {
  coordinator_.SetHeartbeat(grpc::Status::OK, 150);
  Start();
  const absl::Time begin = absl::Now();
  ASSERT_TRUE(heartbeater_->WaitAnswered(4, kTestPatience));
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(3 * 150));
}

TEST_F(HeartbeaterTest, GoOnWhileTheReportStreamStalls) {
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.live; }));
  Start();
  coordinator_.read_gate.Close();
  AppendUntilBlocked(*world_.store, reporter_);
  const uint64_t answered = heartbeater_->counters().answered;
  ASSERT_TRUE(heartbeater_->WaitAnswered(answered + 20, kTestPatience));
  EXPECT_LT(reporter_.applied_sequence(), world_.store->events().last());
  coordinator_.read_gate.Open();
  EXPECT_TRUE(reporter_.WaitApplied(world_.store->events().last(), kTestPatience));
}

TEST_F(HeartbeaterTest, AnUnknownWorkerRegistersAnew) {
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.live; }));
  ASSERT_TRUE(reporter_.WaitApplied(0, kTestPatience));
  coordinator_.SetHeartbeat(grpc::Status(grpc::StatusCode::ABORTED, "register again"));
  Start();
  ASSERT_TRUE(coordinator_.Await([](const auto& s) { return s.registrations.size() >= 2; }));
  coordinator_.SetHeartbeat(grpc::Status::OK);
  ASSERT_TRUE(heartbeater_->WaitAnswered(1, kTestPatience));
  EXPECT_GE(heartbeater_->counters().unknown, 1u);
  EXPECT_EQ(heartbeater_->counters().failed, 0u);
}

TEST_F(HeartbeaterTest, ComesBackWithTheCoordinator) {
  Start();
  ASSERT_TRUE(heartbeater_->WaitAnswered(1, kTestPatience));
  coordinator_.Stop();
  ASSERT_TRUE(Await(kTestPatience, [this] { return heartbeater_->counters().failed > 0; }));
  const uint64_t answered = heartbeater_->counters().answered;
  coordinator_.Restart(/*with_memory=*/false);
  EXPECT_TRUE(heartbeater_->WaitAnswered(answered + 2, kTestPatience));
}

TEST_F(HeartbeaterTest, StopsPromptlyWithinALongInterval) {
  coordinator_.SetHeartbeat(grpc::Status::OK, 3'600'000);
  Start();
  ASSERT_TRUE(heartbeater_->WaitAnswered(1, kTestPatience));
  const absl::Time begin = absl::Now();
  heartbeater_->Stop();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(4));
  EXPECT_FALSE(heartbeater_->WaitAnswered(2, absl::Hours(1)));
}

}  // namespace
}  // namespace kvmesh
