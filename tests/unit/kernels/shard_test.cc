#include "kernels/shard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "byte_pool.h"
#include "kernels/reference/reference.h"

namespace kvmesh {
namespace {

// A way to split a block: every stage holds `layers` layers (the last one the rest), every rank `heads` heads.
std::vector<ShardRange> Split(const BlockLayout& whole, int32_t stages, int32_t ranks) {
  std::vector<ShardRange> out;
  const auto cut = [](int32_t total, int32_t parts, int32_t i) { return static_cast<uint16_t>(total * i / parts); };
  for (int32_t s = 0; s < stages; ++s) {
    for (int32_t r = 0; r < ranks; ++r) {
      const uint16_t layer = cut(whole.layers, stages, s);
      const uint16_t head = cut(whole.kv_heads, ranks, r);
      out.push_back({layer, static_cast<uint16_t>(cut(whole.layers, stages, s + 1) - layer), head,
                     static_cast<uint16_t>(cut(whole.kv_heads, ranks, r + 1) - head)});
    }
  }
  return out;
}

// The bytes of one shard of a canonical block, row by row.
std::vector<std::byte> CutShard(const BlockLayout& whole, const std::vector<std::byte>& block,
                                const ShardRange& shard) {
  std::vector<std::byte> out(ShardLayout(whole, shard).block_bytes);
  const KvPoolView pool{const_cast<std::byte*>(block.data()), whole.block_bytes, 1, whole};
  const uint32_t id = 0;
  reference::GatherBlocks(pool, {&id, 1}, shard, out);
  return out;
}

// Fills every shard of `to` from the shards of `from` and compares it with the unsharded block, byte for byte.
void CheckReshard(const BlockLayout& whole, const std::vector<std::byte>& block, const std::vector<ShardRange>& from,
                  const std::vector<ShardRange>& to) {
  for (const ShardRange& receiver : to) {
    const std::vector<std::byte> want = CutShard(whole, block, receiver);
    std::vector<std::byte> got(want.size());
    std::vector<int> writes(want.size());
    for (const ShardRange& sender : from) {
      const std::vector<std::byte> sent = CutShard(whole, block, sender);
      int64_t last_end = 0;
      int64_t last_from_end = -1;
      for (const CopySegment& s : ShardSegments(whole, sender, receiver)) {
        ASSERT_GT(s.bytes, 0);
        ASSERT_GE(s.from, 0);
        ASSERT_LE(s.from + s.bytes, static_cast<int64_t>(sent.size()));
        ASSERT_GE(s.to, last_end) << "not ascending, or overlapping";
        ASSERT_LE(s.to + s.bytes, static_cast<int64_t>(got.size()));
        ASSERT_FALSE(s.to == last_end && s.from == last_from_end) << "neighbours apart";
        last_end = s.to + s.bytes;
        last_from_end = s.from + s.bytes;
        std::memcpy(&got[s.to], &sent[s.from], s.bytes);
        for (int64_t i = s.to; i < last_end; ++i) ++writes[i];
      }
    }
    ASSERT_EQ(writes, std::vector<int>(writes.size(), 1)) << "some byte is not written exactly once";
    ASSERT_EQ(got, want);
  }
}

TEST(ShardTest, EveryReshardGivesTheBytesOfTheWholeBlock) {
  const int32_t widths[] = {1, 2, 4};
  for (uint64_t seed = 1; seed <= 36; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const KvFormat format = kAllFormats[seed % std::size(kAllFormats)];
    const int32_t tokens[] = {1, 3, 8, 16};
    const int32_t head_dims[] = {8, 64, 80};
    const BlockLayout whole =
        CanonicalLayout(format, static_cast<int32_t>(4 + random() % 3), static_cast<int32_t>(4 + random() % 5),
                        tokens[random() % 4], head_dims[random() % 3]);
    const std::vector<std::byte> block = RandomBytes(whole.block_bytes, random);
    for (int32_t from_ranks : widths) {
      for (int32_t to_ranks : widths) {
        CheckReshard(whole, block, Split(whole, 1, from_ranks), Split(whole, 1, to_ranks));
        CheckReshard(whole, block, Split(whole, 1 + random() % 4, from_ranks),
                     Split(whole, 1 + random() % 4, to_ranks));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(ShardTest, MlaSplitsLayersOnly) {
  std::mt19937_64 random(100);
  for (const KvFormat format : kAllFormats) {
    const BlockLayout whole = CanonicalMlaLayout(format, 5, 16, 96, 16);
    const std::vector<std::byte> block = RandomBytes(whole.block_bytes, random);
    for (int32_t from : {1, 2, 4}) {
      for (int32_t to : {1, 2, 4}) CheckReshard(whole, block, Split(whole, from, 1), Split(whole, to, 1));
    }
    if (HasFatalFailure()) return;
  }
}

TEST(ShardTest, RunsAreAsLongAsTheyCanBe) {
  const BlockLayout whole = CanonicalLayout(KvFormat::kInt8, 3, 4, 16, 64);
  const int64_t head = 16 * (64 + 4);
  // The same shard: one run. Some layers of all heads: one run. Half the heads: one run for each of K and V of a layer.
  EXPECT_EQ(ShardSegments(whole, WholeShard(whole), WholeShard(whole)),
            (std::vector<CopySegment>{{0, 0, whole.block_bytes}}));
  EXPECT_EQ(ShardSegments(whole, WholeShard(whole), {1, 2, 0, 4}),
            (std::vector<CopySegment>{{8 * head, 0, 16 * head}}));
  EXPECT_EQ(ShardSegments(whole, {0, 2, 0, 4}, {1, 2, 2, 2}),
            (std::vector<CopySegment>{{10 * head, 0, 2 * head}, {14 * head, 2 * head, 2 * head}}));
}

TEST(ShardTest, ShardsThatShareNothingGiveNoRuns) {
  const BlockLayout whole = CanonicalLayout(KvFormat::kBf16, 4, 4, 16, 64);
  EXPECT_TRUE(ShardSegments(whole, {0, 2, 0, 4}, {2, 2, 0, 4}).empty());
  EXPECT_TRUE(ShardSegments(whole, {0, 4, 0, 2}, {0, 4, 2, 2}).empty());
  EXPECT_TRUE(ShardSegments(whole, {0, 2, 0, 2}, {1, 3, 2, 2}).empty());
}

TEST(ShardTest, ShardsOutsideTheBlockDoNotFit) {
  const BlockLayout whole = CanonicalLayout(KvFormat::kBf16, 4, 2, 16, 64);
  EXPECT_TRUE(ShardFits(whole, {0, 4, 0, 2}));
  EXPECT_TRUE(ShardFits(whole, {3, 1, 1, 1}));
  EXPECT_FALSE(ShardFits(whole, {0, 0, 0, 2}));
  EXPECT_FALSE(ShardFits(whole, {0, 4, 0, 0}));
  EXPECT_FALSE(ShardFits(whole, {1, 4, 0, 2}));
  EXPECT_FALSE(ShardFits(whole, {0, 4, 1, 2}));
  EXPECT_FALSE(ShardFits(whole, {65535, 65535, 0, 2}));
  EXPECT_FALSE(ShardFits(CanonicalMlaLayout(KvFormat::kBf16, 4, 16, 64, 16), {0, 4, 0, 2}));
}

TEST(ShardTest, LayoutOfAShardIsCanonicalWhateverTheStrides) {
  const BlockLayout whole = HeadsInsideTokens(CanonicalLayout(KvFormat::kInt4, 4, 4, 16, 80));
  EXPECT_EQ(ShardLayout(whole, {1, 2, 1, 3}), CanonicalLayout(KvFormat::kInt4, 2, 3, 16, 80));
  const BlockLayout mla = CanonicalMlaLayout(KvFormat::kFp8E4m3, 4, 16, 512, 64);
  EXPECT_EQ(ShardLayout(mla, {1, 2, 0, 1}), CanonicalMlaLayout(KvFormat::kFp8E4m3, 2, 16, 512, 64));
}

TEST(ShardDeathTest, BrokenRequirementsAbort) {
  const BlockLayout whole = CanonicalLayout(KvFormat::kBf16, 4, 4, 16, 64);
  EXPECT_DEATH(ShardSegments(whole, {0, 4, 0, 5}, WholeShard(whole)), "not part of the block");
  EXPECT_DEATH(RangeSegments(whole, {0, 2, 0, 4}, whole, WholeShard(whole)), "not that of its range");
  const BlockLayout other = CanonicalLayout(KvFormat::kBf16, 4, 4, 8, 64);
  EXPECT_DEATH(RangeSegments(whole, WholeShard(whole), other, WholeShard(other)), "the layouts differ");
}

}  // namespace
}  // namespace kvmesh
