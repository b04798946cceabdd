#include "kernels/cuda/rows_body.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "../byte_pool.h"
#include "kernels/mla.h"
#include "kernels/reshape_and_cache.h"
#include "simulated_machine.h"

namespace kvmesh::cuda {
namespace {

// Random bits, with zeros, infinities and NaN among them.
std::vector<float> WildFloats(int64_t count, std::mt19937_64& random) {
  const float special[] = {0.0f, -0.0f, std::numeric_limits<float>::infinity(), std::nanf(""), 65520.0f};
  std::vector<float> out(static_cast<size_t>(count));
  for (float& x : out) {
    x = random() % 8 == 0 ? special[random() % 5] : BitCast<float>(static_cast<uint32_t>(random()));
    if (random() % 3 == 0) x = static_cast<float>(static_cast<int64_t>(random() % 2001) - 1000) / 64;
  }
  return out;
}

TEST(RowsBodyTest, AppendWritesTheBytesOfTheCpu) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    BlockLayout layout = RandomLayout(kAllFormats[seed % 6], random);
    if (seed % 3 == 0) layout = HeadsInsideTokens(layout);
    BytePool want(layout, 4, 16, random), got(want);
    std::vector<int64_t> slots(4 * layout.block_tokens);
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
    std::shuffle(slots.begin(), slots.end(), random);
    slots.resize(1 + random() % std::min<size_t>(slots.size(), 20));
    slots[random() % slots.size()] = -1;
    const int64_t tokens = static_cast<int64_t>(slots.size());
    const int32_t layer = static_cast<int32_t>(random() % layout.layers);
    const int64_t width = layout.mla() ? layout.latent_dim : layout.kv_heads * layout.head_dim;
    const std::vector<float> first = WildFloats(tokens * width, random);
    const std::vector<float> second =
        WildFloats(tokens * (layout.mla() ? layout.head_dim - layout.latent_dim : width), random);
    if (layout.mla()) {
      ConcatAndCacheMla(first, second, slots, layer, want.view);
    } else {
      ReshapeAndCache(first, second, slots, layer, want.view);
    }
    const AppendArgs args = {first.data(), second.data(), slots.data(), tokens, layer, got.view};
    Simulate(3, 1, 64, 0, seed, [&](Simulated& m) { AppendBody(m, args); });
    ASSERT_TRUE(want.bytes == got.bytes);
  }
}

TEST(RowsBodyTest, ConversionWritesTheBytesOfTheCpu) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const BlockLayout from = RandomLayout(kAllFormats[seed % 6], random);
    const KvFormat format = kAllFormats[(seed % 6 + 1 + random() % 5) % 6];
    const BlockLayout to = from.mla()
                               ? CanonicalMlaLayout(format, from.layers, from.block_tokens, from.latent_dim, 16)
                               : CanonicalLayout(format, from.layers, from.kv_heads, from.block_tokens, from.head_dim);
    BytePool in(from, 3, 8, random), want(to, 3, 24, random);
    for (int64_t r = 0; r < 3 * from.layers * (from.mla() ? 1 : 2) * from.kv_heads * from.block_tokens; ++r) {
      const int64_t token = r % from.block_tokens, head = r / from.block_tokens % from.kv_heads;
      const int64_t side = r / from.block_tokens / from.kv_heads, kv = from.mla() ? 0 : side % 2;
      const int64_t layer = (from.mla() ? side : side / 2) % from.layers,
                    id = side / (from.mla() ? 1 : 2) / from.layers;
      std::byte* const block = in.view.base + id * in.view.slot_stride;
      QuantizeRow(WildFloats(from.head_dim, random), from, block + from.Offset(layer, kv, head, token),
                  block + from.ScaleOffset(layer, kv, head, token));
    }
    BytePool got(want);
    const uint32_t from_ids[] = {2, 0}, to_ids[] = {1, 2};
    for (int i = 0; i < 2; ++i) {
      ConvertBlock(from, {in.view.base + from_ids[i] * in.view.slot_stride, static_cast<size_t>(from.block_bytes)}, to,
                   {want.view.base + to_ids[i] * want.view.slot_stride, static_cast<size_t>(to.block_bytes)});
    }
    const ConvertArgs args = {in.view, got.view, from_ids, to_ids, 2};
    Simulate(2, 1, 64, 0, seed, [&](Simulated& m) { ConvertBody(m, args); });
    ASSERT_TRUE(want.bytes == got.bytes);
  }
}

}  // namespace
}  // namespace kvmesh::cuda
