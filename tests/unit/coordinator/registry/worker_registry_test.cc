#include "coordinator/registry/worker_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "coordinator/prefix_index/literal_prefix_index.h"
#include "tests/support/block_content.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

class WorkerRegistryTest : public testing::Test {
 protected:
  static WorkerDescription Describe(const std::string& id, uint8_t incarnation = 1) {
    WorkerDescription out;
    out.id = id;
    out.incarnation.bytes.fill(incarnation);
    out.address = "127.0.0.1:1";
    out.protocol_version = 1;
    out.block_tokens = 16;
    out.block_bytes = 4096;
    return out;
  }
  void Advance(absl::Duration by) { clock_.AdvanceTo(clock_.Now() + by); }
  absl::Status Beat(const WorkerDescription& worker, uint64_t queued = 0) {
    return registry_.Heartbeat(worker.id, worker.incarnation, {.queued_tokens = queued});
  }

  ManualClock clock_{absl::FromUnixSeconds(1000)};
  LiteralPrefixIndex index_{PrefixIndexOptions{.max_workers = 8}};
  std::vector<std::string> gone_;
  WorkerRegistry registry_{RegistryOptions{.heartbeat_interval = absl::Seconds(1), .missed_limit = 3, .max_workers = 4},
                           index_, clock_,
                           [this](const WorkerEntry& entry) { gone_.push_back(entry.description().id); }};
};

TEST_F(WorkerRegistryTest, RegisteredWorkerWarmsThenIsReadyThenDrains) {
  const auto entry = registry_.Register(Describe("a"));
  ASSERT_TRUE(entry.ok());
  EXPECT_EQ((*entry)->state(), WorkerState::kWarming);
  (*entry)->SetWarmed();
  EXPECT_EQ((*entry)->state(), WorkerState::kReady);
  ASSERT_TRUE(registry_.OrderDrain("a", true).ok());
  EXPECT_EQ((*entry)->state(), WorkerState::kDraining);
  ASSERT_TRUE(registry_.OrderDrain("a", false).ok());
  EXPECT_EQ((*entry)->state(), WorkerState::kReady);
  EXPECT_EQ(registry_.OrderDrain("b", true).code(), absl::StatusCode::kNotFound);
}

TEST_F(WorkerRegistryTest, DescriptionsAreValidatedFieldByField) {
  const auto expect = [&](const char* field, auto change) {
    WorkerDescription description = Describe("a");
    change(description);
    const absl::Status status = registry_.Register(description).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  };
  expect("worker_id", [](WorkerDescription& d) { d.id = ""; });
  expect("worker_id", [](WorkerDescription& d) { d.id = std::string(129, 'x'); });
  expect("worker_id", [](WorkerDescription& d) { d.id = "a b"; });
  expect("incarnation", [](WorkerDescription& d) { d.incarnation = {}; });
  expect("address", [](WorkerDescription& d) { d.address = "nowhere"; });
  expect("protocol_version", [](WorkerDescription& d) { d.protocol_version = 0; });
  expect("block_tokens", [](WorkerDescription& d) { d.block_tokens = 4097; });
  expect("block_bytes", [](WorkerDescription& d) { d.block_bytes = (64 << 20) + 1; });
  expect("prefill_tokens_per_second", [](WorkerDescription& d) { d.prefill_tokens_per_second = -1; });
  expect("peer_bytes_per_second",
         [](WorkerDescription& d) { d.peer_bytes_per_second = std::numeric_limits<double>::quiet_NaN(); });
  EXPECT_TRUE(registry_.List().empty());
}

TEST_F(WorkerRegistryTest, SameIncarnationKeepsItsEntry) {
  const auto first = registry_.Register(Describe("a"));
  const auto again = registry_.Register(Describe("a"));
  EXPECT_EQ(*first, *again);
  EXPECT_EQ(registry_.Table()->workers.size(), 1u);
}

TEST_F(WorkerRegistryTest, SecondIncarnationReplacesTheFirstAndItsIndexGoesDark) {
  const auto first = registry_.Register(Describe("a", 1));
  const std::vector<BlockKey> chain = TestChain(TestRoot(1), 0, 3);
  ASSERT_TRUE(index_
                  .Stored((*first)->slot(), IndexSet::kMemory,
                          {.root = TestRoot(1), .parent = RootAsParent(TestRoot(1)), .keys = chain})
                  .ok());
  const auto second = registry_.Register(Describe("a", 2));
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE((*first)->gone());
  EXPECT_EQ((*first)->state(), WorkerState::kLost);
  EXPECT_EQ(index_.Stats().copies, 0u);
  EXPECT_EQ(gone_, std::vector<std::string>{"a"});
  EXPECT_EQ(registry_.Find("a"), *second);
  EXPECT_EQ(Beat(Describe("a", 1)).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Beat(Describe("a", 2)).ok());
}

TEST_F(WorkerRegistryTest, WorkerIsLostAfterMissedHeartbeatsAndLeavesTheIndex) {
  const auto a = registry_.Register(Describe("a"));
  const auto b = registry_.Register(Describe("b"));
  for (int second = 0; second < 4; ++second) {
    Advance(absl::Seconds(1));
    ASSERT_TRUE(Beat(Describe("b"), 77).ok());
    registry_.ExpireLost();
  }
  EXPECT_EQ((*a)->state(), WorkerState::kLost);
  EXPECT_EQ(gone_, std::vector<std::string>{"a"});
  EXPECT_EQ(registry_.Table()->workers.size(), 1u);
  EXPECT_EQ(registry_.Table()->Position((*a)->slot()), -1);
  EXPECT_EQ(registry_.Table()->Position((*b)->slot()), 0);
  EXPECT_EQ(registry_.List().size(), 2u);
  EXPECT_GE(registry_.heartbeats_missed(), 4u);
  EXPECT_EQ((*b)->queued_tokens(), 77u);
  EXPECT_EQ(index_.Count((*a)->slot(), IndexSet::kDevice), 0u);
  // It has to register again, and is then a new entry.
  EXPECT_EQ(Beat(Describe("a")).code(), absl::StatusCode::kAborted);
  const auto again = registry_.Register(Describe("a"));
  EXPECT_NE(*again, *a);
  EXPECT_EQ(registry_.List().size(), 2u);
}

TEST_F(WorkerRegistryTest, DeadlineCountsBeforeTheCheckRuns) {
  const auto a = registry_.Register(Describe("a"));
  EXPECT_TRUE(registry_.IsAlive(**a, clock_.Now()));
  Advance(absl::Seconds(4));
  EXPECT_FALSE(registry_.IsAlive(**a, clock_.Now()));
}

TEST_F(WorkerRegistryTest, LostWorkersAreForgottenAfterAWhile) {
  ASSERT_TRUE(registry_.Register(Describe("a")).ok());
  Advance(absl::Seconds(5));
  registry_.ExpireLost();
  EXPECT_EQ(registry_.List().size(), 1u);
  Advance(absl::Minutes(11));
  registry_.ExpireLost();
  EXPECT_TRUE(registry_.List().empty());
}

TEST_F(WorkerRegistryTest, WorkersAreBounded) {
  for (const char* id : {"a", "b", "c", "d"}) ASSERT_TRUE(registry_.Register(Describe(id)).ok());
  EXPECT_EQ(registry_.Register(Describe("e")).status().code(), absl::StatusCode::kResourceExhausted);
  // A new incarnation of a known one is no more.
  EXPECT_TRUE(registry_.Register(Describe("d", 2)).ok());
  Advance(absl::Seconds(5));
  registry_.ExpireLost();
  EXPECT_TRUE(registry_.Register(Describe("e")).ok());
}

TEST_F(WorkerRegistryTest, OptionsAreValidated) {
  EXPECT_TRUE(RegistryOptions().Validate().ok());
  EXPECT_FALSE((RegistryOptions{.heartbeat_interval = absl::ZeroDuration()}).Validate().ok());
  EXPECT_FALSE((RegistryOptions{.missed_limit = 0}).Validate().ok());
  EXPECT_FALSE((RegistryOptions{.max_workers = 0}).Validate().ok());
}

}  // namespace
}  // namespace kvmesh
