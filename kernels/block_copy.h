// Moves stored blocks without looking at their elements: slot to slot, and between slots and dense buffers.
#ifndef KVMESH_KERNELS_BLOCK_COPY_H_
#define KVMESH_KERNELS_BLOCK_COPY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kv_pool_view.h"
#include "kernels/shard.h"

namespace kvmesh {

struct BlockPair {
  uint32_t from;
  uint32_t to;
};

// Copies block `from` of one pool over block `to` of another or of the same, for each pair: block_bytes bytes of the
// slot, written and unwritten tokens alike. REQUIRES: equal layouts; ids inside their pools; no block is written twice,
// and within one pool none is both read and written. Thread safe for disjoint blocks.
void CopyBlocks(const KvPoolView& from, const KvPoolView& to, std::span<const BlockPair> pairs);

// Copies the layers and heads `range` of the listed blocks into `out`, block after block, each in the canonical layout
// ShardLayout(pool.layout, range). `range` counts from the pool's own first layer and head. A block may be listed more
// than once. REQUIRES: ids inside the pool; ShardFits(pool.layout, range); out.size() is the number of blocks times the
// shard's block_bytes; `out` lies outside the pool. Thread safe.
void GatherBlocks(const KvPoolView& pool, std::span<const uint32_t> blocks, const ShardRange& range,
                  std::span<std::byte> out);

// The reverse: `in` holds what GatherBlocks would write. What is outside `range` keeps its bytes.
// REQUIRES: as above, and no block is listed twice. Thread safe for disjoint blocks or ranges.
void ScatterBlocks(std::span<const std::byte> in, const KvPoolView& pool, std::span<const uint32_t> blocks,
                   const ShardRange& range);

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_BLOCK_COPY_H_
