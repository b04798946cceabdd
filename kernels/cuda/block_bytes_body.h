// Bodies of the kernels that move stored bytes: slot to slot, and between slots and dense buffers.
#ifndef KVMESH_KERNELS_CUDA_BLOCK_BYTES_BODY_H_
#define KVMESH_KERNELS_CUDA_BLOCK_BYTES_BODY_H_

#include <cstring>

#include "kernels/block_copy.h"
#include "kernels/cuda/machine.h"

namespace kvmesh::cuda {

// How the bytes of one head of one layer, K or V, lie in a slot: `pieces` runs of `bytes` bytes, `stride` apart, then
// the descales in as many runs. A head whose bytes have no gaps is one run without descales apart.
struct HeadPieces {
  int64_t pieces = 0;
  int64_t bytes = 0;
  int64_t stride = 0;
  int64_t descale_bytes = 0;
  int64_t descale_stride = 0;

  constexpr int64_t total() const { return pieces * (bytes + descale_bytes); }
};

constexpr HeadPieces PiecesOf(const BlockLayout& layout) {
  const int64_t row = KvRowBytes(layout.format, layout.head_dim), descales = layout.scale_groups() * kDescaleBytes;
  const int64_t tokens = layout.block_tokens;
  const bool dense = layout.token_stride == row &&
                     (descales == 0 || (layout.scale_offset == row * tokens && layout.scale_token_stride == descales));
  if (dense) return {.pieces = 1, .bytes = (row + descales) * tokens};
  return {.pieces = tokens,
          .bytes = row,
          .stride = layout.token_stride,
          .descale_bytes = descales,
          .descale_stride = layout.scale_token_stride};
}

// Offset in a slot of byte `at` of the dense, canonical copy of the layers and heads `range` of it.
constexpr int64_t SlotOffset(const BlockLayout& layout, const HeadPieces& pieces, const ShardRange& range, int64_t at) {
  const int64_t head_bytes = pieces.total(), sides = layout.mla() ? 1 : 2;
  const int64_t index = at / head_bytes, within = at % head_bytes;
  const int64_t base = layout.Offset(range.first_layer + index / (range.heads * sides), index / range.heads % sides,
                                     range.first_head + index % range.heads, 0);
  const int64_t rows = pieces.pieces * pieces.bytes;
  if (within < rows) return base + within / pieces.bytes * pieces.stride + within % pieces.bytes;
  const int64_t descale = within - rows;
  return base + layout.scale_offset + descale / pieces.descale_bytes * pieces.descale_stride +
         descale % pieces.descale_bytes;
}

// What a thread moves at once where 16 bytes are aligned.
struct alignas(16) Unit16 {
  uint64_t word[2];
};

struct GatherArgs {
  KvPoolView pool;
  HeadPieces pieces;
  ShardRange range;
  const uint32_t* blocks = nullptr;
  int64_t count = 0;        // blocks
  int64_t block_bytes = 0;  // of one block in `dense`
  std::byte* dense = nullptr;
};

// Moves a unit of sizeof(Unit) bytes a thread and turn. kGather: slots to `dense`; else back. Units never straddle a
// piece: the launcher picks one that divides pieces, strides and addresses.
template <bool kGather, class Unit, class M>
KVMESH_KERNEL_BODY void GatherBody(M& m, const GatherArgs& args) {
  constexpr int64_t kUnit = sizeof(Unit);
  const int64_t per_block = args.block_bytes / kUnit, units = args.count * per_block;
  for (int64_t i = m.Block(0) * m.Threads() + m.Thread(); i < units; i += m.Blocks() * m.Threads()) {
    const int64_t block = i / per_block, at = i % per_block * kUnit;
    std::byte* const slot = args.pool.base + args.blocks[block] * args.pool.slot_stride +
                            SlotOffset(args.pool.layout, args.pieces, args.range, at);
    std::byte* const dense = args.dense + i * kUnit;
    Unit unit;
    if constexpr (kGather) {
      std::memcpy(&unit, __builtin_assume_aligned(slot, kUnit), kUnit);
      std::memcpy(__builtin_assume_aligned(dense, kUnit), &unit, kUnit);
    } else {
      std::memcpy(&unit, __builtin_assume_aligned(dense, kUnit), kUnit);
      std::memcpy(__builtin_assume_aligned(slot, kUnit), &unit, kUnit);
    }
  }
}

struct CopyArgs {
  KvPoolView from;
  KvPoolView to;
  const BlockPair* pairs = nullptr;
  int64_t count = 0;
};

template <class Unit, class M>
KVMESH_KERNEL_BODY void CopyBody(M& m, const CopyArgs& args) {
  constexpr int64_t kUnit = sizeof(Unit);
  const int64_t per_block = args.from.layout.block_bytes / kUnit, units = args.count * per_block;
  for (int64_t i = m.Block(0) * m.Threads() + m.Thread(); i < units; i += m.Blocks() * m.Threads()) {
    const BlockPair pair = args.pairs[i / per_block];
    const int64_t at = i % per_block * kUnit;
    Unit unit;
    std::memcpy(&unit, __builtin_assume_aligned(args.from.base + pair.from * args.from.slot_stride + at, kUnit), kUnit);
    std::memcpy(__builtin_assume_aligned(args.to.base + pair.to * args.to.slot_stride + at, kUnit), &unit, kUnit);
  }
}

// 16, 8, 4, 2 or 1: the largest of them that divides all of `values`.
template <class... Values>
constexpr int64_t UnitOf(Values... values) {
  int64_t all = 16;
  ((all |= static_cast<int64_t>(values)), ...);
  return all & -all;
}

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_BLOCK_BYTES_BODY_H_
