#include "kvstore/base/strong_int.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "absl/container/flat_hash_map.h"

namespace kvmesh {
namespace {

static_assert(!std::is_convertible_v<uint32_t, BlockId>);
static_assert(!std::is_convertible_v<BlockId, uint32_t>);
static_assert(!std::is_convertible_v<BlockId, DiskSlot>);
static_assert(sizeof(BlockId) == sizeof(uint32_t));

TEST(StrongIntTest, ComparesByValue) {
  EXPECT_EQ(BlockId(3), BlockId(3));
  EXPECT_LT(BlockId(3), BlockId(4));
  EXPECT_EQ(BlockId().value(), 0u);
  EXPECT_EQ(SequenceId(~uint64_t{0}).value(), ~uint64_t{0});
}

TEST(StrongIntTest, IsAHashKey) {
  absl::flat_hash_map<BlockId, int> map;
  map[BlockId(1)] = 10;
  map[BlockId(2)] = 20;
  EXPECT_EQ(map.at(BlockId(2)), 20);
}

}  // namespace
}  // namespace kvmesh
