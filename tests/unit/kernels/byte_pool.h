// Pools of random bytes in every format and several stride orders, for the tests that move stored bytes.
#ifndef KVMESH_TESTS_UNIT_KERNELS_BYTE_POOL_H_
#define KVMESH_TESTS_UNIT_KERNELS_BYTE_POOL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/kv_pool_view.h"

namespace kvmesh {

inline constexpr KvFormat kAllFormats[] = {KvFormat::kF32,     KvFormat::kF16,  KvFormat::kBf16,
                                           KvFormat::kFp8E4m3, KvFormat::kInt8, KvFormat::kInt4};

inline std::vector<std::byte> RandomBytes(int64_t count, std::mt19937_64& random) {
  std::vector<std::byte> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); i += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(&out[i], &word, std::min(sizeof(word), out.size() - i));
  }
  return out;
}

// A canonical layout of `format` with at most 5 layers and 6 heads; one in four is MLA.
inline BlockLayout RandomLayout(KvFormat format, std::mt19937_64& random) {
  const int32_t block_tokens[] = {1, 3, 8, 16, 64};
  const int32_t head_dims[] = {8, 64, 80, 96, 128};
  const int32_t layers = static_cast<int32_t>(1 + random() % 5);
  const int32_t tokens = block_tokens[random() % 5];
  if (random() % 4 == 0) return CanonicalMlaLayout(format, layers, tokens, head_dims[random() % 5], 16);
  return CanonicalLayout(format, layers, static_cast<int32_t>(1 + random() % 6), tokens, head_dims[random() % 5]);
}

// The same dimensions with heads inside tokens instead of tokens inside heads, and gaps between rows.
inline BlockLayout HeadsInsideTokens(BlockLayout layout) {
  layout.head_stride = KvRowBytes(layout.format, layout.head_dim) + 24;
  layout.token_stride = layout.head_stride * layout.kv_heads;
  layout.scale_offset = layout.scale_group == 0 ? 0 : layout.token_stride * layout.block_tokens;
  layout.scale_token_stride = layout.scale_group == 0 ? 0 : layout.token_stride;
  const int64_t side = layout.token_stride * layout.block_tokens * (layout.scale_group == 0 ? 1 : 2);
  layout.kv_stride = layout.mla() ? 0 : side;
  layout.layer_stride = side * (layout.mla() ? 1 : 2) + 8;
  layout.block_bytes = layout.layer_stride * layout.layers;
  return layout;
}

// A pool of random bytes whose slots are `gap` bytes apart.
struct BytePool {
  BytePool(const BlockLayout& layout, int64_t slots, int64_t gap, std::mt19937_64& random)
      : bytes(RandomBytes((layout.block_bytes + gap) * slots, random)),
        view{bytes.data(), layout.block_bytes + gap, slots, layout} {}
  BytePool(const BytePool& other) : bytes(other.bytes), view(other.view) { view.base = bytes.data(); }

  std::vector<std::byte> bytes;
  KvPoolView view;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_KERNELS_BYTE_POOL_H_
