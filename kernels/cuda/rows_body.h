// Bodies of the kernels that write stored rows: append, MLA append and the conversion of blocks. One warp a row.
#ifndef KVMESH_KERNELS_CUDA_ROWS_BODY_H_
#define KVMESH_KERNELS_CUDA_ROWS_BODY_H_

#include <algorithm>
#include <cstring>

#include "kernels/cuda/machine.h"
#include "kernels/kv_pool_view.h"
#include "kernels/quantize_kv.h"

namespace kvmesh::cuda {

// Writes the row x(0) .. x(head_dim - 1) with its descales: what QuantizeRow writes, bit for bit, since the largest
// magnitude of a group does not depend on the order of its elements. A lane writes whole bytes: int4 elements go in
// pairs, as scale_group is even. Every lane of the warp calls it with the same row.
template <class M, class X>
KVMESH_KERNEL_BODY void WriteRow(M& m, const BlockLayout& layout, std::byte* row, std::byte* descales, X x) {
  const int lane = m.Thread() % kWarpThreads;
  const int32_t step = layout.format == KvFormat::kInt4 ? 2 : 1;
  const int32_t groups = layout.scale_group == 0 ? 1 : layout.scale_groups();
  const int32_t group_size = layout.scale_group == 0 ? layout.head_dim : layout.scale_group;
  for (int32_t g = 0; g < groups; ++g) {
    const int32_t first = g * group_size;
    const int32_t last = std::min(first + group_size, layout.head_dim);
    float descale = 0;
    if (layout.scale_group > 0) {
      uint32_t magnitude = 0;
      for (int32_t i = first + lane; i < last; i += kWarpThreads) {
        magnitude = std::max(magnitude, BitCast<uint32_t>(static_cast<float>(x(i))) & 0x7fffffffu);
      }
      for (int mask = 16; mask > 0; mask /= 2) magnitude = std::max(magnitude, m.ShuffleXor(magnitude, mask));
      descale = DescaleOf(magnitude, layout.format);
      if (lane == 0) std::memcpy(descales + g * kDescaleBytes, &descale, sizeof(descale));
    }
    for (int32_t i = first + lane * step; i < last; i += kWarpThreads * step) {
      for (int32_t k = i; k < std::min(i + step, last); ++k) {
        float value = x(k);
        if (layout.scale_group > 0) value = StoresElements(descale) ? value / descale : 0.0f;
        StoreElement(value, row, k, layout.format);
      }
    }
  }
}

// Element `i` of a stored row as fp32, its descale applied: what DequantizeRow gives of rows that QuantizeRow wrote.
KVMESH_HOST_DEVICE inline float ReadElement(const BlockLayout& layout, const std::byte* row, const std::byte* descales,
                                            int32_t i) {
  const float stored = LoadElement(row, i, layout.format);
  if (layout.scale_group == 0) return stored;
  float descale;
  std::memcpy(&descale, descales + i / layout.scale_group * kDescaleBytes, sizeof(descale));
  // A product's NaN has other bits on a GPU.
  return descale != descale ? descale : stored * descale;
}

// The first row of this warp and the distance to its next.
template <class M>
KVMESH_KERNEL_BODY int64_t FirstWarp(const M& m) {
  return (m.Block(0) * m.Threads() + m.Thread()) / kWarpThreads;
}
template <class M>
KVMESH_KERNEL_BODY int64_t Warps(const M& m) {
  return m.Blocks() * m.Threads() / kWarpThreads;
}

// Append of K and V, or of MLA rows. Row r is (token, K or V, head) or, with MLA, the token.
struct AppendArgs {
  const float* first = nullptr;   // key [tokens, kv_heads, head_dim], or latent [tokens, latent_dim]
  const float* second = nullptr;  // value, or rope key [tokens, rope_dim]
  const int64_t* slot_mapping = nullptr;
  int64_t tokens = 0;
  int32_t layer = 0;
  KvPoolView pool;
};

template <class M>
KVMESH_KERNEL_BODY void AppendBody(M& m, const AppendArgs& args) {
  const BlockLayout& layout = args.pool.layout;
  const int64_t sides = layout.mla() ? 1 : 2, rows = args.tokens * sides * layout.kv_heads;
  const int32_t rope_dim = layout.head_dim - layout.latent_dim;
  for (int64_t r = FirstWarp(m); r < rows; r += Warps(m)) {
    const int64_t token = r / (sides * layout.kv_heads), kv = r / layout.kv_heads % sides, head = r % layout.kv_heads;
    const int64_t slot = args.slot_mapping[token];
    if (slot < 0) continue;
    const int64_t block = slot / layout.block_tokens, at = slot % layout.block_tokens;
    std::byte* const row = args.pool.At(block, args.layer, kv, head, at);
    std::byte* const descales =
        args.pool.base + block * args.pool.slot_stride + layout.ScaleOffset(args.layer, kv, head, at);
    if (layout.mla()) {
      WriteRow(m, layout, row, descales, [&](int32_t i) {
        return i < layout.latent_dim ? args.first[token * layout.latent_dim + i]
                                     : args.second[token * rope_dim + i - layout.latent_dim];
      });
    } else {
      const float* x = (kv == 0 ? args.first : args.second) + (token * layout.kv_heads + head) * layout.head_dim;
      WriteRow(m, layout, row, descales, [&](int32_t i) { return x[i]; });
    }
  }
}

// Conversion of blocks: block from_ids[i] of one pool to block to_ids[i] of another; without ids, block i.
struct ConvertArgs {
  KvPoolView from;
  KvPoolView to;
  const uint32_t* from_ids = nullptr;
  const uint32_t* to_ids = nullptr;
  int64_t blocks = 0;
};

template <class M>
KVMESH_KERNEL_BODY void ConvertBody(M& m, const ConvertArgs& args) {
  const BlockLayout &from = args.from.layout, &to = args.to.layout;
  const int64_t sides = from.mla() ? 1 : 2, heads = from.kv_heads, tokens = from.block_tokens;
  const int64_t rows = args.blocks * from.layers * sides * heads * tokens;
  for (int64_t r = FirstWarp(m); r < rows; r += Warps(m)) {
    const int64_t token = r % tokens, head = r / tokens % heads, kv = r / (tokens * heads) % sides;
    const int64_t layer = r / (tokens * heads * sides) % from.layers, i = r / (tokens * heads * sides * from.layers);
    const std::byte* const in = args.from.base + (args.from_ids ? args.from_ids[i] : i) * args.from.slot_stride;
    std::byte* const out = args.to.base + (args.to_ids ? args.to_ids[i] : i) * args.to.slot_stride;
    const std::byte* const row = in + from.Offset(layer, kv, head, token);
    const std::byte* const descales = in + from.ScaleOffset(layer, kv, head, token);
    WriteRow(m, to, out + to.Offset(layer, kv, head, token), out + to.ScaleOffset(layer, kv, head, token),
             [&](int32_t k) { return ReadElement(from, row, descales, k); });
  }
}

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_ROWS_BODY_H_
