#include "kernels/cuda/block_bytes_body.h"

#include <gtest/gtest.h>

#include <vector>

#include "../byte_pool.h"
#include "simulated_machine.h"

namespace kvmesh::cuda {
namespace {

ShardRange RandomRange(const BlockLayout& layout, std::mt19937_64& random) {
  ShardRange out;
  out.layers = static_cast<uint16_t>(1 + random() % layout.layers);
  out.first_layer = static_cast<uint16_t>(random() % (layout.layers - out.layers + 1));
  out.heads = static_cast<uint16_t>(1 + random() % layout.kv_heads);
  out.first_head = static_cast<uint16_t>(random() % (layout.kv_heads - out.heads + 1));
  return out;
}

TEST(BlockBytesBodyTest, GatherAndScatterEqualTheCpus) {
  const uint32_t blocks[] = {3, 0, 2};
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    BlockLayout layout = RandomLayout(kAllFormats[seed % 6], random);
    if (seed % 2 == 0) layout = HeadsInsideTokens(layout);
    BytePool pool(layout, 4, 16, random), got_pool(pool), want_pool(pool);
    const ShardRange range = RandomRange(layout, random);
    const int64_t bytes = ShardLayout(layout, range).block_bytes;
    std::vector<std::byte> want(static_cast<size_t>(3 * bytes)), got(want.size());
    GatherBlocks(pool.view, blocks, range, want);
    GatherArgs args = {pool.view, PiecesOf(layout), range, blocks, 3, bytes, got.data()};
    Simulate(2, 1, 64, 0, seed, [&](Simulated& m) { GatherBody<true, uint8_t>(m, args); });
    ASSERT_TRUE(want == got);

    const std::vector<std::byte> in = RandomBytes(3 * bytes, random);
    ScatterBlocks(in, want_pool.view, blocks, range);
    args.pool = got_pool.view;
    args.dense = const_cast<std::byte*>(in.data());
    // Rows, descales and gaps of these layouts are multiples of 4 bytes.
    Simulate(2, 1, 64, 0, seed, [&](Simulated& m) { GatherBody<false, uint32_t>(m, args); });
    ASSERT_TRUE(want_pool.bytes == got_pool.bytes);
  }
}

TEST(BlockBytesBodyTest, CopyMovesWholeBlocks) {
  std::mt19937_64 random(5);
  const BlockLayout layout = CanonicalLayout(KvFormat::kBf16, 2, 3, 8, 64);
  BytePool from(layout, 4, 0, random), want(layout, 4, 48, random), got(want);
  const BlockPair pairs[] = {{3, 0}, {1, 2}};
  CopyBlocks(from.view, want.view, pairs);
  const CopyArgs args = {from.view, got.view, pairs, 2};
  Simulate(2, 1, 64, 0, 5, [&](Simulated& m) { CopyBody<uint64_t>(m, args); });
  EXPECT_TRUE(want.bytes == got.bytes);
}

TEST(BlockBytesBodyTest, UnitIsTheLargestThatDividesAll) {
  EXPECT_EQ(UnitOf(32, 48, 0), 16);
  EXPECT_EQ(UnitOf(32, 24), 8);
  EXPECT_EQ(UnitOf(20, 160), 4);
  EXPECT_EQ(UnitOf(6), 2);
  EXPECT_EQ(UnitOf(16, 7), 1);
}

}  // namespace
}  // namespace kvmesh::cuda
