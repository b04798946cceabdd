#include "kvstore/tiers/window_boundaries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/support/block_content.h"

namespace kvmesh {
namespace {

using testing::UnorderedElementsAreArray;

TEST(WindowBlocksTest, ReachOverTheWindowOfATokenThatIsComputedAgain) {
  for (const auto& [window, blocks] :
       std::map<int64_t, uint32_t>{{1, 1}, {15, 1}, {16, 1}, {17, 2}, {18, 2}, {32, 2}, {33, 3}, {128, 8}, {129, 9}}) {
    EXPECT_EQ(WindowBlocks(window, 16), blocks) << window;
  }
}

// Trees of blocks that come and go in any order, against the definition.
class WindowBoundariesRandomTest : public testing::TestWithParam<uint64_t> {
 protected:
  struct Block {
    BlockKey key;
    BlockKey parent;
    int parent_index;  // in blocks_; -1: the root
    uint32_t index;
  };

  // Chains that branch off one another.
  void MakeTree(std::mt19937_64& random) {
    const RootKey root = TestRoot(1);
    for (int i = 0; i < 40; ++i) {
      const int parent = i == 0 || random() % 8 == 0 ? -1 : static_cast<int>(random() % static_cast<uint64_t>(i));
      const BlockKey key = TestChain(root, static_cast<uint32_t>(i) + 1, 1)[0];
      const auto p = static_cast<size_t>(parent);
      blocks_.push_back(
          {key, parent < 0 ? RootAsParent(root) : blocks_[p].key, parent, parent < 0 ? 0 : blocks_[p].index + 1});
    }
  }
  std::vector<BlockKey> LiteralUsable(uint32_t needed) const {
    std::vector<BlockKey> usable;
    for (const Block& block : blocks_) {
      const Block* at = &block;
      bool covered = true;
      for (uint32_t i = 0; i < std::min(needed, block.index + 1); ++i) {
        covered = covered && held_.contains(at->key);
        if (at->parent_index >= 0) at = &blocks_[static_cast<size_t>(at->parent_index)];
      }
      if (covered) usable.push_back(block.key);
    }
    return usable;
  }

  std::vector<Block> blocks_;
  std::set<BlockKey> held_;
};

TEST_P(WindowBoundariesRandomTest, AreThoseBeforeWhichAllNeededBlocksAreHeld) {
  SCOPED_TRACE(testing::Message() << "seed " << GetParam());
  std::mt19937_64 random(GetParam());
  MakeTree(random);
  const auto needed = static_cast<uint32_t>(1 + random() % 5);
  EventLog log(1 << 16);
  WindowBoundaries boundaries(needed);
  boundaries.ReportTo(log);
  std::set<BlockKey> told;
  uint64_t cursor = 0;
  for (int step = 0; step < 500; ++step) {
    const Block& block = blocks_[random() % blocks_.size()];
    if (held_.insert(block.key).second) {
      boundaries.OnHeld(block.key, block.parent, block.index);
    } else {
      held_.erase(block.key);
      boundaries.OnGone(block.key);
    }
    const std::vector<BlockKey> usable = LiteralUsable(needed);
    ASSERT_THAT(boundaries.All(), UnorderedElementsAreArray(usable)) << "step " << step;
    const absl::StatusOr<std::vector<StoreEvent>> events = log.ReadAfter(cursor, SIZE_MAX);
    ASSERT_TRUE(events.ok()) << events.status();
    for (const StoreEvent& event : *events) {
      const bool is_usable = event.kind == StoreEvent::Kind::kUsable;
      ASSERT_TRUE(is_usable ? told.insert(event.key).second : told.erase(event.key) == 1) << "step " << step;
      cursor = event.sequence;
    }
    ASSERT_THAT(told, UnorderedElementsAreArray(usable)) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, WindowBoundariesRandomTest, testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace kvmesh
