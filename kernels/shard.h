// Shards: the part of a model-wide block that one device holds, and the bytes that fill one part from another.
#ifndef KVMESH_KERNELS_SHARD_H_
#define KVMESH_KERNELS_SHARD_H_

#include <cstdint>
#include <vector>

#include "kernels/layout.h"

namespace kvmesh {

// A shard is a (layer range, head range) of a block: pipeline stages split layers, tensor parallelism splits kv heads.
// One whole block is {0, layers, 0, kv_heads}. With MLA there is one head, which every rank holds.
struct ShardRange {
  uint16_t first_layer = 0;
  uint16_t layers = 0;
  uint16_t first_head = 0;
  uint16_t heads = 0;

  friend constexpr bool operator==(const ShardRange&, const ShardRange&) = default;
};

// All of a block of `layout`.
constexpr ShardRange WholeShard(const BlockLayout& layout) {
  return {0, static_cast<uint16_t>(layout.layers), 0, static_cast<uint16_t>(layout.kv_heads)};
}

// Whether `shard` is a part of a block of `whole` and not empty. What a peer names must pass before it is used.
constexpr bool ShardFits(const BlockLayout& whole, const ShardRange& shard) {
  return shard.layers > 0 && shard.heads > 0 && shard.first_layer + shard.layers <= whole.layers &&
         shard.first_head + shard.heads <= whole.kv_heads;
}

// The canonical layout of a shard on its own, whatever the strides of `whole`. REQUIRES: ShardFits.
constexpr BlockLayout ShardLayout(const BlockLayout& whole, const ShardRange& shard) {
  if (whole.mla()) {
    return CanonicalMlaLayout(whole.format, shard.layers, whole.block_tokens, whole.latent_dim,
                              whole.head_dim - whole.latent_dim);
  }
  return CanonicalLayout(whole.format, shard.layers, shard.heads, whole.block_tokens, whole.head_dim);
}

// `bytes` bytes go from offset `from` of the sender's bytes to offset `to` of the receiver's.
struct CopySegment {
  int64_t from = 0;
  int64_t to = 0;
  int64_t bytes = 0;

  friend bool operator==(const CopySegment&, const CopySegment&) = default;
};

// What a receiver's shard takes from a sender's: rows and descales of the layers and heads that both hold, and nothing
// where they share none. Both lie in the canonical layout of their shard. Runs are in ascending order of `to`, never
// overlap, and neighbours are one run. Shards that together hold the receiver's layers and heads, each once, fill it
// wholly. REQUIRES: both shards fit `whole`.
std::vector<CopySegment> ShardSegments(const BlockLayout& whole, const ShardRange& from, const ShardRange& to);

// The same between blocks of any strides: `from_layout` is how the layers and heads `from` lie at the sender,
// `to_layout` how `to` lies at the receiver. Runs are in the receiver's order of layer, K or V, head, rows, descales.
// REQUIRES: format and dimensions agree; each layout has the layers and heads of its range.
std::vector<CopySegment> RangeSegments(const BlockLayout& from_layout, const ShardRange& from,
                                       const BlockLayout& to_layout, const ShardRange& to);

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_SHARD_H_
