// Where the layers of one attention span keep their blocks, and which of them a sequence needs to go on.
#ifndef KVMESH_WORKER_ENGINE_CACHE_GROUP_H_
#define KVMESH_WORKER_ENGINE_CACHE_GROUP_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/streaming_policy.h"
#include "kvstore/tiers/block_store.h"

namespace kvmesh {

// The groups of a sequence share its tokens; each layer of the model is in one of them.
struct CacheGroup {
  BlockStore* store = nullptr;  // not owned
  uint32_t number = 0;          // in headers and keys (ComputeGroupKey); 0: the chain, whose window is 0
  int64_t window = 0;           // keys that a position sees, its own included; 0: all
  int64_t sinks = 0;            // leading positions that every position sees besides its window
  std::vector<int32_t> layers;  // of the model, ascending; a block holds them in this order
};

// The chain's group of a store whose blocks hold all layers.
CacheGroup ChainGroup(BlockStore& store);

// Group 1 of the sequences that stream over the blocks of a model without windows; `groups` themselves without a
// policy. REQUIRES: with a policy, one group without a window.
std::vector<CacheGroup> GroupsUnder(const StreamingPolicy& policy, const std::vector<CacheGroup>& groups);

// Blocks [0, sinks) and [first, end) of a sequence.
struct NeededBlocks {
  uint32_t sinks = 0;
  uint32_t first = 0;
  uint32_t end = 0;

  bool Has(uint32_t i) const { return i < end && (i < sinks || i >= first); }
};

// What queries from `position` on read of the positions below `end`.
inline NeededBlocks BlocksSeenFrom(const CacheGroup& group, uint64_t position, uint64_t end, uint32_t block_tokens) {
  const uint64_t window = static_cast<uint64_t>(group.window), sinks = static_cast<uint64_t>(group.sinks);
  const uint64_t visible = window == 0 || position < window ? 0 : position + 1 - window;
  const auto blocks = [block_tokens](uint64_t tokens) {
    return static_cast<uint32_t>((tokens + block_tokens - 1) / block_tokens);
  };
  NeededBlocks needed{.sinks = 0, .first = static_cast<uint32_t>(visible / block_tokens), .end = blocks(end)};
  if (visible >= end) needed.first = needed.end;
  needed.sinks = std::min(blocks(sinks), needed.first);
  return needed;
}

// What a sequence of `tokens` tokens must hold to go on after its first `boundary` blocks. When these are all of its
// tokens the last one is computed again, over its own stored K/V (contract 4). The last block before the boundary is
// needed even where a window reaches into none: it shows that the boundary was computed.
inline NeededBlocks BlocksToContinue(const CacheGroup& group, uint32_t boundary, uint64_t tokens,
                                     uint32_t block_tokens) {
  const uint64_t computed = uint64_t{boundary} * block_tokens;
  const uint64_t next = computed > 0 && computed == tokens ? computed - 1 : computed;
  NeededBlocks needed = BlocksSeenFrom(group, next, computed, block_tokens);
  needed.first = std::min(needed.first, std::max(boundary, 1u) - 1);
  needed.sinks = std::min(needed.sinks, needed.first);
  return needed;
}

}  // namespace kvmesh

#endif  // KVMESH_WORKER_ENGINE_CACHE_GROUP_H_
