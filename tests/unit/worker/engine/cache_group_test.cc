#include "worker/engine/cache_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvmesh {
namespace {

// By block before `end`: whether a query at `position` or later, at most at `last`, attends to one of its positions.
std::vector<bool> SeenLiterally(const CacheGroup& group, uint64_t position, uint64_t last, uint64_t end,
                                uint32_t block_tokens) {
  std::vector<bool> seen((end + block_tokens - 1) / block_tokens);
  for (uint64_t t = position; t <= last; ++t) {
    for (uint64_t j = 0; j < end && j <= t; ++j) {
      const bool in_window = group.window == 0 || t - j < static_cast<uint64_t>(group.window);
      if (in_window || j < static_cast<uint64_t>(group.sinks)) seen[j / block_tokens] = true;
    }
  }
  return seen;
}

std::vector<CacheGroup> Groups() {
  std::vector<CacheGroup> groups = {{.window = 0}};
  for (const int64_t window : {1, 2, 7, 8, 9, 16, 17, 18, 33}) {
    for (const int64_t sinks : {0, 1, 8, 9}) groups.push_back({.number = 1, .window = window, .sinks = sinks});
  }
  return groups;
}

TEST(CacheGroupTest, SeenBlocksAreThoseThatTheMaskReaches) {
  constexpr uint32_t kBlock = 8;
  for (const CacheGroup& group : Groups()) {
    for (uint64_t position = 0; position < 60; ++position) {
      for (uint64_t end = position; end <= position + 10; ++end) {
        const NeededBlocks needed = BlocksSeenFrom(group, position, end, kBlock);
        const std::vector<bool> seen = SeenLiterally(group, position, std::max(position, end), end, kBlock);
        ASSERT_EQ(needed.end, seen.size());
        for (uint32_t i = 0; i < needed.end; ++i) {
          EXPECT_EQ(needed.Has(i), seen[i]) << "window " << group.window << " sinks " << group.sinks << " block " << i
                                            << " from " << position << " below " << end;
        }
      }
    }
  }
}

TEST(CacheGroupTest, GoingOnNeedsWhatTheNextTokenSeesAndTheLastBlock) {
  constexpr uint32_t kBlock = 8;
  for (const CacheGroup& group : Groups()) {
    for (uint32_t boundary = 1; boundary <= 8; ++boundary) {
      const uint64_t computed = uint64_t{boundary} * kBlock;
      for (const uint64_t tokens : {computed, computed + 1, computed + 20}) {
        const NeededBlocks needed = BlocksToContinue(group, boundary, tokens, kBlock);
        const uint64_t next = computed == tokens ? computed - 1 : computed;
        std::vector<bool> want = SeenLiterally(group, next, next, computed, kBlock);
        want[boundary - 1] = true;
        ASSERT_EQ(needed.end, boundary);
        for (uint32_t i = 0; i < boundary; ++i) {
          EXPECT_EQ(needed.Has(i), want[i]) << "window " << group.window << " sinks " << group.sinks << " block " << i
                                            << " of " << boundary << " with " << tokens << " tokens";
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvmesh
