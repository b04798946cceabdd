#include "kernels/reshape_and_cache.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "kernels/paged_attention.h"
#include "kernels/quantize_kv.h"
#include "kernels/reference/reference.h"
#include "random_pool.h"

namespace kvmesh {
namespace {

constexpr KvFormat kFormats[] = {KvFormat::kF32,     KvFormat::kF16,  KvFormat::kBf16,
                                 KvFormat::kFp8E4m3, KvFormat::kInt8, KvFormat::kInt4};

// A pool of bytes 0xa5.
struct Pool {
  Pool(const BlockLayout& layout, int64_t slots, int64_t stride)
      : bytes(static_cast<size_t>(stride * slots), std::byte{0xa5}), view{bytes.data(), stride, slots, layout} {}
  Pool(const Pool& other) : bytes(other.bytes), view(other.view) { view.base = bytes.data(); }

  std::vector<std::byte> bytes;
  KvPoolView view;
};

// Random numbers of all magnitudes, with zeros, infinities, NaN and ties among them.
std::vector<float> WildFloats(size_t count, std::mt19937_64& random) {
  const float special[] = {0.0f,
                           -0.0f,
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::quiet_NaN(),
                           std::numeric_limits<float>::denorm_min(),
                           std::numeric_limits<float>::max(),
                           65519.996f,
                           65520.0f,
                           1.00390625f};
  std::vector<float> out(count);
  for (float& x : out) {
    if (random() % 4 == 0) {
      x = special[random() % std::size(special)];
    } else {
      x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    }
  }
  return out;
}

TEST(ReshapeAndCacheTest, EqualsReferenceBitForBitAndTouchesNothingElse) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const BlockLayout layout = CanonicalLayout(kFormats[seed % 6], 1 + random() % 3, 1 + random() % 4,
                                               1 + random() % 20, 8 * (1 + random() % 16));
    Pool want(layout, 5, layout.block_bytes + 64);
    Pool got(want);
    const std::vector<int64_t> slots = RandomSlots(5 * layout.block_tokens, random);
    const size_t elements = slots.size() * layout.kv_heads * layout.head_dim;
    const std::vector<float> key = WildFloats(elements, random);
    const std::vector<float> value = WildFloats(elements, random);
    const int32_t layer = static_cast<int32_t>(random() % layout.layers);
    reference::ReshapeAndCache(key, value, slots, layer, want.view);
    ReshapeAndCache(key, value, slots, layer, got.view);
    ASSERT_EQ(std::memcmp(want.bytes.data(), got.bytes.data(), want.bytes.size()), 0);
  }
}

// Slot by slot in double: the stored value is within half a step of what was appended, and nothing else changes.
TEST(ReshapeAndCacheTest, WhatIsReadIsWhatWasWrittenRoundedToTheFormat) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const BlockLayout layout = CanonicalLayout(kFormats[seed % 6], 2, 1 + random() % 3, 1 + random() % 20,
                                               8 * static_cast<int32_t>(1 + random() % 16));
    Pool pool(layout, 4, layout.block_bytes);
    const std::vector<int64_t> slots = RandomSlots(4 * layout.block_tokens, random);
    const std::vector<float> key = RandomFloats(slots.size() * layout.kv_heads * layout.head_dim, random);
    const std::vector<float> value = RandomFloats(key.size(), random);
    ReshapeAndCache(key, value, slots, 1, pool.view);
    // Steps relative to the largest of the group, or to the number itself, half of them.
    const std::map<KvFormat, double> error = {{KvFormat::kF32, 0.0},          {KvFormat::kF16, 0x1p-11},
                                              {KvFormat::kBf16, 0x1p-8},      {KvFormat::kFp8E4m3, 0x1p-4},
                                              {KvFormat::kInt8, 0.5 / 126.9}, {KvFormat::kInt4, 0.5 / 6.99}};
    std::vector<float> got(layout.head_dim);
    for (size_t t = 0; t < slots.size(); ++t) {
      if (slots[t] < 0) continue;
      for (int64_t kv = 0; kv < 2; ++kv) {
        for (int64_t head = 0; head < layout.kv_heads; ++head) {
          const std::byte* block = pool.bytes.data() + slots[t] / layout.block_tokens * layout.block_bytes;
          const int64_t token = slots[t] % layout.block_tokens;
          DequantizeRow(block + layout.Offset(1, kv, head, token), block + layout.ScaleOffset(1, kv, head, token),
                        layout, got);
          const float* want = &(kv == 0 ? key : value)[(t * layout.kv_heads + head) * layout.head_dim];
          const float most = std::abs(*std::max_element(want, want + layout.head_dim,
                                                        [](float a, float b) { return std::abs(a) < std::abs(b); }));
          for (int32_t i = 0; i < layout.head_dim; ++i) {
            ASSERT_LE(std::abs(double{got[i]} - want[i]), error.at(layout.format) * most) << "element " << i;
          }
        }
      }
    }
  }
}

TEST(ReshapeAndCacheTest, FollowsTheStridesOfTheLayout) {
  // Heads inside tokens instead of tokens inside heads, with gaps.
  BlockLayout layout = CanonicalLayout(KvFormat::kF32, 2, 3, 4, 8);
  layout.head_stride = 40;
  layout.token_stride = 40 * 3 + 8;
  layout.kv_stride = layout.token_stride * 4;
  layout.layer_stride = layout.kv_stride * 2 + 16;
  layout.block_bytes = layout.layer_stride * 2;
  Pool pool(layout, 3, layout.block_bytes);
  std::mt19937_64 random(1);
  const std::vector<float> key = RandomFloats(2 * 3 * 8, random);
  const std::vector<float> value = RandomFloats(2 * 3 * 8, random);
  const std::vector<int64_t> slots = {2 * 4 + 3, 1};
  ReshapeAndCache(key, value, slots, 1, pool.view);
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t head = 0; head < 3; ++head) {
      const size_t at = (t * 3 + head) * 8;
      const std::byte* slot = pool.bytes.data() + (slots[t] / 4) * layout.block_bytes + layout.layer_stride +
                              head * 40 + (slots[t] % 4) * layout.token_stride;
      EXPECT_EQ(std::memcmp(slot, &key[at], 32), 0);
      EXPECT_EQ(std::memcmp(slot + layout.kv_stride, &value[at], 32), 0);
    }
  }
}

TEST(ReshapeAndCacheTest, AnySplitIntoCallsGivesTheSameBits) {
  for (const KvFormat format : kFormats) {
    SCOPED_TRACE("format=" + std::to_string(static_cast<int>(format)));
    std::mt19937_64 random(2);
    const BlockLayout layout = CanonicalLayout(format, 1, 2, 16, 24);
    Pool whole(layout, 6, layout.block_bytes);
    Pool split(whole);
    const std::vector<int64_t> slots = RandomSlots(6 * 16, random);
    const size_t row = 2 * 24;
    const std::vector<float> key = WildFloats(slots.size() * row, random);
    const std::vector<float> value = WildFloats(slots.size() * row, random);
    ReshapeAndCache(key, value, slots, 0, whole.view);
    for (size_t begin = 0; begin < slots.size();) {
      const size_t count = std::min<size_t>(1 + random() % 7, slots.size() - begin);
      ReshapeAndCache(std::span(key).subspan(begin * row, count * row),
                      std::span(value).subspan(begin * row, count * row), std::span(slots).subspan(begin, count), 0,
                      split.view);
      begin += count;
    }
    EXPECT_EQ(std::memcmp(whole.bytes.data(), split.bytes.data(), whole.bytes.size()), 0);
  }
}

// Reserves address space only; what is not written takes no memory.
class SparsePoolTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = size_t{5} << 30;

  void SetUp() override {
    void* base = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) GTEST_SKIP() << "no address space for a pool of 5 GiB";
    base_ = static_cast<std::byte*>(base);
  }
  void TearDown() override {
    if (base_ != nullptr) munmap(base_, kBytes);
  }

  std::byte* base_ = nullptr;
};

TEST_F(SparsePoolTest, BlocksBeyondFourGibibytesWork) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kInt8}) {
    const BlockLayout layout = CanonicalLayout(format, 2, 2, 16, 64);
    const int64_t slots = static_cast<int64_t>(kBytes) / layout.block_bytes;
    const KvPoolView large{base_, layout.block_bytes, slots, layout};
    Pool small(layout, 4, layout.block_bytes);
    const std::vector<uint32_t> far = {static_cast<uint32_t>(slots - 1),
                                       static_cast<uint32_t>((int64_t{1} << 31) / layout.block_bytes),
                                       static_cast<uint32_t>((int64_t{1} << 32) / layout.block_bytes), 0};
    const std::vector<uint32_t> near = {0, 1, 2, 3};
    std::mt19937_64 random(3);
    constexpr int64_t kTokens = 60;
    const std::vector<float> key = RandomFloats(kTokens * 2 * 64, random);
    const std::vector<float> value = RandomFloats(kTokens * 2 * 64, random);
    std::vector<int64_t> far_slots, near_slots;
    for (int64_t t = 0; t < kTokens; ++t) {
      far_slots.push_back(int64_t{far[t / 16]} * 16 + t % 16);
      near_slots.push_back(t);
    }
    ReshapeAndCache(key, value, far_slots, 1, large);
    ReshapeAndCache(key, value, near_slots, 1, small.view);

    const std::vector<float> query = RandomFloats(kTokens * 4 * 64, random);
    const AttentionParams params{.q_heads = 4, .scale = 0.125f};
    std::vector<float> from_far(query.size()), from_near(query.size());
    const AttentionSequence far_sequence{far, 0, kTokens};
    const AttentionSequence near_sequence{near, 0, kTokens};
    PagedAttention(query, {&far_sequence, 1}, 1, params, large, from_far);
    PagedAttention(query, {&near_sequence, 1}, 1, params, small.view, from_near);
    EXPECT_EQ(std::memcmp(from_far.data(), from_near.data(), query.size() * sizeof(float)), 0);
  }
}

TEST(ReshapeAndCacheDeathTest, BrokenRequirementsAbort) {
  const BlockLayout layout = CanonicalLayout(KvFormat::kF32, 1, 1, 4, 8);
  Pool pool(layout, 2, layout.block_bytes);
  const std::vector<float> row(8);
  const std::vector<int64_t> inside = {7}, beyond = {8}, below = {-2};
  EXPECT_DEATH(ReshapeAndCache(row, row, beyond, 0, pool.view), "slot outside the pool");
  EXPECT_DEATH(ReshapeAndCache(row, row, below, 0, pool.view), "slot outside the pool");
  EXPECT_DEATH(ReshapeAndCache(row, row, inside, 1, pool.view), "layer out of range");
  EXPECT_DEATH(ReshapeAndCache(row, std::span(row).first(7), inside, 0, pool.view), "key and value");
  pool.view.layout = CanonicalMlaLayout(KvFormat::kF32, 1, 4, 4, 4);
  EXPECT_DEATH(ReshapeAndCache(row, row, inside, 0, pool.view), "MLA");
}

}  // namespace
}  // namespace kvmesh
