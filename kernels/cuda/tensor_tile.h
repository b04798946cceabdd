// Shapes, shared memory and the reading of K/V tiles of attention on tensor cores.
#ifndef KVMESH_KERNELS_CUDA_TENSOR_TILE_H_
#define KVMESH_KERNELS_CUDA_TENSOR_TILE_H_

#include <cstring>
#include <type_traits>

#include "kernels/cuda/attention_args.h"
#include "kernels/cuda/fragment.h"

namespace kvmesh::cuda {

// An instance of the kernel. kHeadDim: a multiple of 16 that head_dim is padded to. Split: one tile of 16 rows, whose
// keys the warps share out; else 64 rows, 16 a warp, each warp with all keys.
template <KvFormat kFormat_, int kHeadDim_, bool kSplit_>
struct TensorShape {
  static constexpr KvFormat kFormat = kFormat_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kSplit = kSplit_;
  static constexpr bool kOneByte = KvFormatBits(kFormat) == 8;
  using Element = std::conditional_t<kFormat == KvFormat::kF16, F16, Bf16>;

  static constexpr int kKeys = kHeadDim > 128 ? 32 : 64;  // of a tile
  static constexpr int kWarps = kSplit ? kKeys / 16 : 4;
  static constexpr int kThreads = kWarps * kWarpThreads;
  static constexpr int kRows = kSplit ? 16 : 64;
  static constexpr int kWarpKeys = kSplit ? 16 : kKeys;
  // Bytes from one row of a tile to the next: an odd number of 16s, so that eight rows lie in different banks.
  static constexpr int kPitch = kHeadDim * 2 + 16;
  static constexpr int kRawRow = kOneByte ? kHeadDim : kHeadDim * 2;
  static constexpr int kRawPitch = kRawRow + 16;
  static_assert(kHeadDim % 16 == 0 && kPitch / 16 % 2 == 1);

  // Offsets in shared memory. Two stages of raw K and V tiles; for one-byte formats the converted tile beside them.
  static constexpr int kRawTile = kKeys * kRawPitch;
  static constexpr int kConverted = 4 * kRawTile;
  static constexpr int kTilesEnd = kConverted + (kOneByte ? 2 * kKeys * kPitch : 0);
  static constexpr int kDescales = kTilesEnd;  // fp32 [stage][K, V][key]
  static constexpr int kQuery = kDescales + (kOneByte ? 4 * kKeys * 4 : 0);
  static constexpr int kQueryTile = kRows * kPitch;  // the rounded query, then what rounding left of it
  static constexpr int kSharedBytes = kQuery + 2 * kQueryTile;
  // After the last tile the states of the rows lie where the tiles did: fp32 [state][kHeadDim], then highest and sum.
  static constexpr int kStates = kSplit ? kWarps * 16 : kRows;
  static_assert(kStates * kHeadDim * 4 + kStates * 8 <= kTilesEnd);
  static_assert(kDescales % 16 == 0 && kQuery % 16 == 0);
};

// Copies 16 bytes from a row of which `left` bytes are left: what lies beyond them becomes zeros.
template <class M>
KVMESH_KERNEL_BODY void LoadChunk(M& m, std::byte* to, const std::byte* from, int64_t left, bool aligned) {
  if (aligned && left >= 16) {
    m.CopyAsync16(to, from);
    return;
  }
  for (int i = 0; i < 16; ++i) to[i] = i < left ? from[i] : std::byte{0};
}

// Begins to read the tile of kKeys keys from position `first` on into a stage. Keys outside tile.keys, and elements
// beyond head_dim, become zeros: what is in their slots is not read.
template <class Shape, class M>
KVMESH_KERNEL_BODY void LoadTile(M& m, const AttentionArgs& args, const AttentionTile& tile, int64_t first, int stage) {
  const BlockLayout& layout = args.pool.layout;
  constexpr int kChunks = Shape::kRawRow / 16;
  const int64_t row_bytes = KvRowBytes(Shape::kFormat, layout.head_dim);
  std::byte* const to = m.Shared() + stage * 2 * Shape::kRawTile;
  for (int i = m.Thread(); i < Shape::kKeys * kChunks; i += Shape::kThreads) {
    const int key = i / kChunks, chunk = i % kChunks;
    const int64_t position = first + key;
    const bool inside = position >= tile.keys.begin && position < tile.keys.end;
    int64_t from = 0;
    if (inside) {
      const uint32_t at = static_cast<uint32_t>(position), tokens = static_cast<uint32_t>(layout.block_tokens);
      from = tile.sequence.block_table[at / tokens] * args.pool.slot_stride +
             layout.Offset(args.layer, 0, tile.kv_head, at % tokens) + chunk * 16;
    }
    const int64_t left = inside ? row_bytes - chunk * 16 : 0;
    for (int kv = 0; kv < 2; ++kv) {
      LoadChunk(m, to + kv * Shape::kRawTile + key * Shape::kRawPitch + chunk * 16,
                args.pool.base + from + kv * layout.kv_stride, left, args.aligned);
    }
  }
  if constexpr (Shape::kOneByte) {
    float* const descales = reinterpret_cast<float*>(m.Shared() + Shape::kDescales) + stage * 2 * Shape::kKeys;
    for (int i = m.Thread(); i < 2 * Shape::kKeys; i += Shape::kThreads) {
      const int64_t position = first + i % Shape::kKeys;
      float descale = 0;
      if (position >= tile.keys.begin && position < tile.keys.end) {
        const int64_t id = tile.sequence.block_table[position / layout.block_tokens];
        const std::byte* const from =
            args.pool.base + id * args.pool.slot_stride +
            layout.ScaleOffset(args.layer, i / Shape::kKeys, tile.kv_head, position % layout.block_tokens);
        std::memcpy(&descale, __builtin_assume_aligned(from, 4), 4);
      }
      descales[i] = descale;
    }
  }
}

// The elements of a one-byte tile as bf16, which holds each of them exactly; descales are applied to scores and
// weights.
template <class Shape, class M>
KVMESH_KERNEL_BODY void ConvertTile(M& m, int stage) {
  const std::byte* const from = m.Shared() + stage * 2 * Shape::kRawTile;
  std::byte* const to = m.Shared() + Shape::kConverted;
  constexpr int kQuads = Shape::kHeadDim / 4;
  for (int i = m.Thread(); i < 2 * Shape::kKeys * kQuads; i += Shape::kThreads) {
    const int row = i / kQuads, quad = i % kQuads;  // row: of K, then of V
    uint32_t raw;
    std::memcpy(&raw, __builtin_assume_aligned(from + row * Shape::kRawPitch + quad * 4, 4), 4);
    float x[4];
    FourElements<Shape::kFormat>(raw, x);
    // Exact, so the upper half of the fp32 is the bf16.
    const uint32_t pair[2] = {BitCast<uint32_t>(x[0]) >> 16 | (BitCast<uint32_t>(x[1]) & 0xffff0000u),
                              BitCast<uint32_t>(x[2]) >> 16 | (BitCast<uint32_t>(x[3]) & 0xffff0000u)};
    std::memcpy(__builtin_assume_aligned(to + row * Shape::kPitch + quad * 8, 8), pair, 8);
  }
}

// Writes the queries of the tile, rounded to the elements of the tensor cores, and beside them what rounding took, so
// that their sum is the query to about 16 bits. Returns whether it took anything from any of them.
template <class Shape, class M>
KVMESH_KERNEL_BODY bool LoadQueries(M& m, const AttentionArgs& args, const AttentionTile& tile) {
  using Element = typename Shape::Element;
  std::byte* const to = m.Shared() + Shape::kQuery;
  const int32_t head_dim = args.pool.layout.head_dim, group = args.group();
  bool rest = false;
  for (int i = m.Thread(); i < Shape::kRows * Shape::kHeadDim; i += Shape::kThreads) {
    const int row = i / Shape::kHeadDim, d = i % Shape::kHeadDim;
    float x = 0;
    if (row < tile.count && d < head_dim) x = args.query[tile.Index(row, group, args.q_heads) * head_dim + d];
    const uint16_t high = ToElement<Element>(x);
    const uint16_t low = ToElement<Element>(x - FromElement<Element>(high));
    rest |= (low & 0x7fff) != 0;
    std::memcpy(__builtin_assume_aligned(to + row * Shape::kPitch + d * 2, 2), &high, 2);
    std::memcpy(__builtin_assume_aligned(to + Shape::kQueryTile + row * Shape::kPitch + d * 2, 2), &low, 2);
  }
  return m.SyncOr(rest);
}

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_TENSOR_TILE_H_
