#include "coordinator/report/command_board.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace kvmesh {
namespace {

class CommandBoardTest : public testing::Test {
 protected:
  static v1::Command Unpin() {
    v1::Command command;
    command.mutable_unpin()->set_pin_id("p");
    return command;
  }
  CommandBoard::Sink Collect() {
    return [this](v1::ReportResponse response) {
      sent_.push_back(response.command());
      return open_;
    };
  }
  CommandBoard::Done Keep() {
    return [this](const CommandOutcome& outcome) { outcomes_.push_back(outcome); };
  }
  static v1::CommandResult Result(uint64_t id, uint64_t blocks, int code = 0) {
    v1::CommandResult result;
    result.set_id(id);
    result.set_blocks(blocks);
    result.set_code(code);
    return result;
  }

  ManualClock clock_{absl::FromUnixSeconds(1000)};
  Metrics metrics_;
  ReportMetrics counters_{metrics_};
  CommandBoard board_{clock_, counters_};
  bool open_ = true;
  std::vector<v1::Command> sent_;
  std::vector<CommandOutcome> outcomes_;
};

TEST_F(CommandBoardTest, ResultIsMatchedByIdAndWorker) {
  board_.Attach("a", board_.NewSession(), Collect());
  board_.Send("a", Unpin(), absl::Seconds(5), Keep());
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_NE(sent_[0].id(), 0u);
  board_.Resolve("b", Result(sent_[0].id(), 7));  // not its command
  board_.Resolve("a", Result(sent_[0].id() + 1, 7));
  EXPECT_TRUE(outcomes_.empty());
  board_.Resolve("a", Result(sent_[0].id(), 7));
  board_.Resolve("a", Result(sent_[0].id(), 8));  // again
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_TRUE(outcomes_[0].status.ok());
  EXPECT_EQ(outcomes_[0].blocks, 7u);
  EXPECT_EQ(counters_.results_unmatched.Value(), 3);
}

TEST_F(CommandBoardTest, FailureOfTheWorkerComesBackAsItsStatus) {
  board_.Attach("a", board_.NewSession(), Collect());
  board_.Send("a", Unpin(), absl::Seconds(5), Keep());
  board_.Resolve("a", Result(sent_[0].id(), 0, static_cast<int>(absl::StatusCode::kResourceExhausted)));
  EXPECT_EQ(outcomes_[0].status.code(), absl::StatusCode::kResourceExhausted);
  board_.Send("a", Unpin(), absl::Seconds(5), Keep());
  board_.Resolve("a", Result(sent_[1].id(), 0, 4711));
  EXPECT_EQ(outcomes_[1].status.code(), absl::StatusCode::kUnknown);
}

TEST_F(CommandBoardTest, DeadlineEndsACommandOnce) {
  board_.Attach("a", board_.NewSession(), Collect());
  board_.Send("a", Unpin(), absl::Seconds(5), Keep());
  clock_.AdvanceTo(clock_.Now() + absl::Seconds(4));
  board_.Expire();
  EXPECT_TRUE(outcomes_.empty());
  clock_.AdvanceTo(clock_.Now() + absl::Seconds(1));
  board_.Expire();
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  board_.Resolve("a", Result(sent_[0].id(), 1));
  EXPECT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(counters_.commands_timed_out.Value(), 1);
}

TEST_F(CommandBoardTest, WithoutAStreamACommandIsRefused) {
  board_.Send("a", Unpin(), absl::Seconds(5), Keep());
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].status.code(), absl::StatusCode::kUnavailable);
  board_.Attach("a", board_.NewSession(), Collect());
  open_ = false;
  board_.Send("a", Unpin(), absl::Seconds(5), Keep());
  EXPECT_EQ(outcomes_[1].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(counters_.commands_refused.Value(), 2);
}

TEST_F(CommandBoardTest, EndOfTheStreamEndsItsCommands) {
  const uint64_t first = board_.NewSession();
  const uint64_t second = board_.NewSession();
  board_.Attach("a", first, Collect());
  board_.Send("a", Unpin(), absl::Seconds(5), Keep());
  board_.Attach("a", second, Collect());
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].status.code(), absl::StatusCode::kUnavailable);
  board_.Send("a", Unpin(), absl::Seconds(5), Keep());
  board_.Detach("a", first);  // of a stream that was replaced
  EXPECT_EQ(outcomes_.size(), 1u);
  board_.Detach("a", second);
  EXPECT_EQ(outcomes_.size(), 2u);
}

TEST_F(CommandBoardTest, CommandsThatWaitAreBounded) {
  board_.Attach("a", board_.NewSession(), Collect());
  for (size_t i = 0; i <= CommandBoard::kMaxPendingPerWorker; ++i) {
    board_.Send("a", Unpin(), absl::Seconds(5), Keep());
  }
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].status.code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CommandBoardTest, SendAllGathersInOrder) {
  std::vector<std::thread> workers;
  for (const char* id : {"a", "b"}) {
    board_.Attach(id, board_.NewSession(), [this, id, &workers](v1::ReportResponse response) {
      workers.emplace_back(
          [this, id, command = response.command()] { board_.Resolve(id, Result(command.id(), id[0] == 'a' ? 3 : 4)); });
      return true;
    });
  }
  const auto outcomes =
      board_.SendAll({{"b", Unpin()}, {"none", Unpin()}, {"a", Unpin()}}, absl::Seconds(5), [] { return false; });
  for (std::thread& worker : workers) worker.join();
  ASSERT_EQ(outcomes.size(), 3u);
  EXPECT_EQ(outcomes[0].blocks, 4u);
  EXPECT_EQ(outcomes[1].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(outcomes[2].blocks, 3u);
}

TEST_F(CommandBoardTest, SendAllEndsWhenItsCallerHasGone) {
  board_.Attach("a", board_.NewSession(), Collect());
  const auto outcomes = board_.SendAll({{"a", Unpin()}}, absl::Seconds(5), [] { return true; });
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].status.code(), absl::StatusCode::kCancelled);
  board_.Resolve("a", Result(sent_[0].id(), 1));  // late, harmless
}

}  // namespace
}  // namespace kvmesh
