#include "kernels/block_copy.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "byte_pool.h"
#include "kernels/reference/reference.h"

namespace kvmesh {
namespace {

constexpr int64_t kSlots = 7;

// A pool in one of the formats, canonical or not, drawn from a seed.
BytePool RandomBytePool(uint64_t seed, std::mt19937_64& random) {
  BlockLayout layout = RandomLayout(kAllFormats[seed % std::size(kAllFormats)], random);
  if (random() % 2 == 0) layout = HeadsInsideTokens(layout);
  return BytePool(layout, kSlots, random() % 2 * 40, random);
}

ShardRange RandomRange(const BlockLayout& layout, std::mt19937_64& random) {
  ShardRange range;
  range.first_layer = static_cast<uint16_t>(random() % layout.layers);
  range.layers = static_cast<uint16_t>(1 + random() % (layout.layers - range.first_layer));
  range.first_head = static_cast<uint16_t>(random() % layout.kv_heads);
  range.heads = static_cast<uint16_t>(1 + random() % (layout.kv_heads - range.first_head));
  return range;
}

// Some of the pool's blocks, in random order.
std::vector<uint32_t> RandomBlocks(std::mt19937_64& random) {
  std::vector<uint32_t> ids(kSlots);
  std::iota(ids.begin(), ids.end(), 0u);
  std::shuffle(ids.begin(), ids.end(), random);
  ids.resize(random() % (kSlots + 1));
  return ids;
}

TEST(BlockCopyTest, GatherAndScatterEqualTheReferenceAndTouchNothingElse) {
  for (uint64_t seed = 1; seed <= 240; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    BytePool pool = RandomBytePool(seed, random);
    const ShardRange range = RandomRange(pool.view.layout, random);
    const std::vector<uint32_t> blocks = RandomBlocks(random);
    const BlockLayout shard = ShardLayout(pool.view.layout, range);
    const std::vector<std::byte> before = pool.bytes;

    std::vector<std::byte> want(blocks.size() * shard.block_bytes), got(want);
    reference::GatherBlocks(pool.view, blocks, range, want);
    GatherBlocks(pool.view, blocks, range, got);
    ASSERT_EQ(want, got);
    ASSERT_EQ(pool.bytes, before);

    BytePool other(pool);
    const std::vector<std::byte> in = RandomBytes(static_cast<int64_t>(want.size()), random);
    reference::ScatterBlocks(in, other.view, blocks, range);
    ScatterBlocks(in, pool.view, blocks, range);
    ASSERT_EQ(other.bytes, pool.bytes);
    GatherBlocks(pool.view, blocks, range, got);
    ASSERT_EQ(got, in);
    ScatterBlocks(want, pool.view, blocks, range);
    ASSERT_EQ(pool.bytes, before);
  }
}

TEST(BlockCopyTest, GatheringAWholeCanonicalBlockIsItsBytes) {
  std::mt19937_64 random(1);
  for (const KvFormat format : kAllFormats) {
    const BytePool pool(RandomLayout(format, random), kSlots, 64, random);
    const int64_t bytes = pool.view.layout.block_bytes;
    std::vector<std::byte> got(3 * bytes);
    const std::vector<uint32_t> blocks = {6, 0, 6};  // one of them twice
    GatherBlocks(pool.view, blocks, WholeShard(pool.view.layout), got);
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(std::memcmp(&got[i * bytes], pool.view.base + blocks[i] * pool.view.slot_stride, bytes), 0);
    }
  }
}

TEST(BlockCopyTest, CopiesWholeSlotsWithinAPoolAndBetweenTwo) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    BytePool pool = RandomBytePool(seed, random);
    BytePool want(pool);
    std::vector<uint32_t> ids(kSlots);
    std::iota(ids.begin(), ids.end(), 0u);
    std::shuffle(ids.begin(), ids.end(), random);
    // Blocks of the first half are read, some of them often; those of the second are written.
    std::vector<BlockPair> pairs;
    for (size_t i = kSlots / 2; i < ids.size(); ++i) pairs.push_back({ids[random() % (kSlots / 2)], ids[i]});
    reference::CopyBlocks(want.view, want.view, pairs);
    CopyBlocks(pool.view, pool.view, pairs);
    ASSERT_EQ(want.bytes, pool.bytes);
    const int64_t bytes = pool.view.layout.block_bytes;
    for (const BlockPair& pair : pairs) {
      ASSERT_EQ(std::memcmp(pool.view.At(pair.from, 0, 0, 0, 0), pool.view.At(pair.to, 0, 0, 0, 0), bytes), 0);
    }

    BytePool other(pool.view.layout, 3, 8, random);
    BytePool other_want(other);
    const std::vector<BlockPair> across = {{ids[0], 2}, {ids[1], 0}};  // an id may be in both: the pools differ
    reference::CopyBlocks(pool.view, other_want.view, across);
    CopyBlocks(pool.view, other.view, across);
    ASSERT_EQ(other_want.bytes, other.bytes);
    ASSERT_EQ(want.bytes, pool.bytes);
  }
}

TEST(BlockCopyTest, NothingListedDoesNothing) {
  std::mt19937_64 random(2);
  const BytePool pool(CanonicalLayout(KvFormat::kF32, 1, 1, 4, 8), 2, 0, random);
  const std::vector<std::byte> before = pool.bytes;
  CopyBlocks(pool.view, pool.view, {});
  GatherBlocks(pool.view, {}, WholeShard(pool.view.layout), {});
  ScatterBlocks({}, pool.view, {}, WholeShard(pool.view.layout));
  EXPECT_EQ(pool.bytes, before);
}

TEST(BlockCopyTest, BlocksBeyondFourGibibytesWork) {
  constexpr size_t kBytes = size_t{5} << 30;  // address space; only what is written takes memory
  void* base = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) GTEST_SKIP() << "no address space for a pool of 5 GiB";
  const BlockLayout layout = CanonicalLayout(KvFormat::kInt8, 2, 2, 16, 64);
  const int64_t slots = static_cast<int64_t>(kBytes) / layout.block_bytes;
  const KvPoolView large{static_cast<std::byte*>(base), layout.block_bytes, slots, layout};
  const uint32_t past2 = static_cast<uint32_t>((int64_t{1} << 31) / layout.block_bytes + 1);
  const uint32_t past4 = static_cast<uint32_t>((int64_t{1} << 32) / layout.block_bytes + 1);
  const uint32_t last = static_cast<uint32_t>(slots - 1);
  std::mt19937_64 random(3);
  const std::vector<std::byte> in = RandomBytes(2 * layout.block_bytes, random);
  ScatterBlocks(in, large, std::vector<uint32_t>{past2, last}, WholeShard(layout));
  CopyBlocks(large, large, std::vector<BlockPair>{{last, past4}});
  std::vector<std::byte> got(in.size());
  GatherBlocks(large, std::vector<uint32_t>{past2, past4}, WholeShard(layout), got);
  EXPECT_EQ(got, in);
  munmap(base, kBytes);
}

TEST(BlockCopyDeathTest, BrokenRequirementsAbort) {
  std::mt19937_64 random(4);
  const BytePool pool(CanonicalLayout(KvFormat::kF32, 1, 2, 4, 8), 3, 0, random);
  const BytePool other(CanonicalLayout(KvFormat::kF32, 1, 1, 4, 8), 3, 0, random);
  using Pairs = std::vector<BlockPair>;
  EXPECT_DEATH(CopyBlocks(pool.view, other.view, Pairs{{0, 1}}), "different layouts");
  EXPECT_DEATH(CopyBlocks(pool.view, pool.view, Pairs{{0, 3}}), "outside the pool");
  EXPECT_DEATH(CopyBlocks(pool.view, pool.view, Pairs{{0, 2}, {1, 2}}), "written twice");
  EXPECT_DEATH(CopyBlocks(pool.view, pool.view, Pairs{{0, 1}, {1, 2}}), "both read and written");
  const ShardRange whole = WholeShard(pool.view.layout);
  std::vector<std::byte> out(2 * pool.view.layout.block_bytes);
  using Ids = std::vector<uint32_t>;
  EXPECT_DEATH(GatherBlocks(pool.view, Ids{0, 3}, whole, out), "outside the pool");
  EXPECT_DEATH(GatherBlocks(pool.view, Ids{0}, whole, out), "the buffer is not");
  EXPECT_DEATH(GatherBlocks(pool.view, Ids{0}, {0, 1, 1, 2}, out), "range outside");
  EXPECT_DEATH(ScatterBlocks(out, pool.view, Ids{1, 1}, whole), "listed twice");
}

}  // namespace
}  // namespace kvmesh
