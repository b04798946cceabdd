// Working memory of the AVX-512 attention: a tile of keys against a run of query rows.
#ifndef KVMESH_KERNELS_CPU_AVX512_SCRATCH_H_
#define KVMESH_KERNELS_CPU_AVX512_SCRATCH_H_

#include <cstddef>
#include <cstdint>

#include "kernels/attention_rows.h"

namespace kvmesh::avx512 {

// How the loops read rows of K and V.
enum class Stored { kF32, kBf16, kInt8 };

// Elements of a row in 32 bits, which is what one lane of a vector multiplies at a time.
constexpr int PerWord(Stored stored) { return stored == Stored::kF32 ? 1 : stored == Stored::kBf16 ? 2 : 4; }

// Keys of a tile. Tiles start at multiples of this, so the cut of a query's keys depends on its position only.
inline constexpr int kTile = 64;
inline constexpr int kMaxDim = 256;
inline constexpr int kVector = 64;  // bytes
static_assert(kSpanTokens % kTile == 0);

// Keys [begin, end) of a tile, relative to its start.
struct TileRange {
  int begin = 0;
  int end = 0;

  friend bool operator==(const TileRange&, const TileRange&) = default;
};

// A query as the score loop reads it: its elements, or those of its high digit and then those of its low one.
inline constexpr int kQueryBytes = kMaxDim * 4;

// A tile, and which of the rows of each kv head see it: those of one run, as later rows see later keys.
struct Tile {
  int64_t start = 0;
  int first = 0;                // row of a kv head
  int last = 0;                 // past the last one
  TileRange seen;               // what any of them sees
  TileRange ranges[kMostRows];  // what each of them sees
};

// Where the rows of a kv head's tile are, or `zeros` for keys that are not seen.
struct TileRows {
  const std::byte* key[kTile];
  const std::byte* value[kTile];
  alignas(kVector) float key_descale[kTile];  // int8; 0 for keys that are not seen
  alignas(kVector) float value_descale[kTile];
};

// About 340 KiB; one per thread.
struct alignas(kVector) Scratch {
  int64_t query_stride = 0;  // bytes
  int64_t acc_stride = 0;    // elements
  alignas(kVector) std::byte query[kMostRows * kQueryBytes];
  float query_scale[kMostRows];                     // int8: score = (sum - query_bias) * scale * the key's descale
  int32_t query_bias[kMostRows];                    // int8: what the offset of unsigned keys adds
  alignas(kVector) float scores[kMostRows][kTile];  // in log2 units
  alignas(kVector) int32_t keys[16 * kTile];        // [word of a column][key]: transposed keys
  alignas(
      kVector) float weights[kMostRows][kTile];  // fp32: weights; bf16: 64 high digits, then 64 low ones; int8 likewise
  float weight_scale[kMostRows];                 // int8: weight * the value's descale = digits * scale
  float rescale[kMostRows];                      // what `acc` is multiplied by for this tile
  alignas(kVector) float acc[kMostRows * kMaxDim];  // sums of weight * value, in the order of ElementAt
  alignas(kVector) float sums[kMostRows][16];       // partial sums of weights
  float highest[kMostRows];                         // highest score so far; weights are relative to it
  KeyRange seen[kMostRows];                         // positions that each row sees
  float zeros[kMaxDim];
  Tile tiles[2];                // this one and the next
  TileRows rows[2];             // of this kv head and of the one that comes next
  const std::byte* own[kTile];  // value rows of rows that see less than others

  // Queries and sums lie densely, so that those of many rows don't meet in the same lines of the caches.
  std::byte* Query(int row) { return query + row * query_stride; }
  float* Acc(int row) { return acc + row * acc_stride; }
};

// Where element d of a row's sum stands in `acc`: the loops interleave the rows of neighbouring keys within 128-bit
// lanes. Multiples of 4 stand before their next three.
constexpr int ElementAt(int d, Stored stored) {
  const int lane = 4 * PerWord(stored), vectors = 4 * lane;
  return d / vectors * vectors + d % lane / 4 * 16 + d % vectors / lane * 4 + d % 4;
}

}  // namespace kvmesh::avx512

#endif  // KVMESH_KERNELS_CPU_AVX512_SCRATCH_H_
