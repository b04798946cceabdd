#include "worker/report/command_desk.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/unit/worker/report/report_world.h"

namespace kvmesh {
namespace {

// Runs closures when told to.
class ManualExecutor : public Executor {
 public:
  void Schedule(std::function<void()> work) override { queue_.push_back(std::move(work)); }
  void RunAll() {
    for (const std::function<void()>& work : std::exchange(queue_, {})) work();
  }
  size_t queued() const { return queue_.size(); }

 private:
  std::vector<std::function<void()>> queue_;
};

class CommandDeskTest : public testing::Test {
 protected:
  CommandDeskTest() {
    desk_.emplace(handler_, executor_, 2, [this] { ++wakes_; });
    desk_->BeginStream();
  }
  void Submit(uint64_t id) {
    v1::Command command;
    command.set_id(id);
    command.mutable_drain();
    desk_->Submit(command);
  }
  std::vector<uint64_t> TakeIds() {
    std::vector<uint64_t> ids;
    for (const v1::CommandResult& result : desk_->TakeResults()) ids.push_back(result.id());
    return ids;
  }

  TestHandler handler_;
  ManualExecutor executor_;
  int wakes_ = 0;
  std::optional<CommandDesk> desk_;
};

TEST_F(CommandDeskTest, EachResultWakesTheStream) {
  Submit(1);
  Submit(2);
  EXPECT_EQ(wakes_, 0);
  executor_.RunAll();
  EXPECT_EQ(wakes_, 2);
  EXPECT_EQ(TakeIds(), (std::vector<uint64_t>{1, 2}));
  EXPECT_TRUE(TakeIds().empty());
}

TEST_F(CommandDeskTest, TheLimitCoversResultsThatWait) {
  Submit(1);
  Submit(2);
  executor_.RunAll();
  Submit(3);
  EXPECT_EQ(executor_.queued(), 0u);
  const std::vector<v1::CommandResult> results = desk_->TakeResults();
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[2].id(), 3u);
  EXPECT_EQ(results[2].code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  Submit(4);
  executor_.RunAll();
  EXPECT_EQ(TakeIds(), (std::vector<uint64_t>{4}));
}

TEST_F(CommandDeskTest, RefusalsAreBoundedToo) {
  for (uint64_t id = 1; id <= 100; ++id) Submit(id);
  EXPECT_EQ(TakeIds(), (std::vector<uint64_t>{3, 4}));
  EXPECT_EQ(desk_->counters().refused, 98u);
  EXPECT_EQ(desk_->counters().submitted, 100u);
  EXPECT_EQ(desk_->counters().open, 2u);
}

TEST_F(CommandDeskTest, ANewStreamForgetsTheOldOnesOrders) {
  Submit(1);
  executor_.RunAll();
  Submit(2);
  desk_->BeginStream();
  executor_.RunAll();
  EXPECT_TRUE(TakeIds().empty());
  EXPECT_EQ(handler_.orders().size(), 1u) << "an order that had not begun is not carried out";
  EXPECT_EQ(desk_->counters().open, 0u);
}

TEST_F(CommandDeskTest, OrdersLeftAtTheEndAreDropped) {
  Submit(1);
  desk_.reset();
  executor_.RunAll();
  EXPECT_TRUE(handler_.orders().empty());
}

}  // namespace
}  // namespace kvmesh
