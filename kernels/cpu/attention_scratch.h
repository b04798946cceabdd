// Working memory of the Highway attention: one tile of keys against one block of query rows.
#ifndef KVMESH_KERNELS_CPU_ATTENTION_SCRATCH_H_
#define KVMESH_KERNELS_CPU_ATTENTION_SCRATCH_H_

#include <cstddef>
#include <cstdint>

#include "kernels/attention_rows.h"

namespace kvmesh::cpu {

// Keys of a tile. Tiles start at multiples of this in absolute positions, so the split of the keys of a query depends
// on its position only.
inline constexpr int kTile = 64;
inline constexpr int kRows = kMostRows;
inline constexpr int kMaxDim = 256;
// Elements of a head whose keys are transposed at a time.
inline constexpr int kSlice = 32;
// Partial sums of weights per row, on every instruction set, so that the order of addition is the same on all.
inline constexpr int kPartials = 16;
static_assert(kTile % kPartials == 0 && kSpanTokens % kTile == 0);

// Keys [begin, end) of a tile, relative to its start.
struct TileRange {
  int begin = 0;
  int end = 0;
};

// About 450 KiB; one per thread. "dim" is head_dim rounded up to a multiple of 16, the excess zero.
struct alignas(64) AttentionScratch {
  float query[kRows * kMaxDim];       // [row][head_dim], multiplied by the scale
  float keys[kSlice * kTile];         // [element of a slice][key]
  float scores[kRows * kTile];        // [row][key]: scores in log2 units, then weights
  float acc[kRows * kMaxDim];         // [row][dim]: sum of weight * value
  float sums[kRows * kPartials];      // [row][partial]: sum of weights
  float highest[kRows];               // [row]: highest score so far; weights are relative to it
  float rescale[kRows];               // [row]: what `acc` and `sums` are multiplied by for this tile
  float key_copy[kTile * kMaxDim];    // [key][dim] as fp32, for keys neither fp32 nor bf16
  float value_copy[kTile * kMaxDim];  // [key][dim] as fp32, where the pool does not hold just that
  float zeros[kMaxDim];
  const std::byte* key_rows[kTile];    // row of each key of the tile, or `zeros` where no query of the block sees it
  const std::byte* value_rows[kTile];  // likewise, [dim]
  TileRange ranges[kRows];             // keys of the tile that each row sees
  KeyRange keys_seen[kRows];           // positions that each row sees
};

}  // namespace kvmesh::cpu

#endif  // KVMESH_KERNELS_CPU_ATTENTION_SCRATCH_H_
