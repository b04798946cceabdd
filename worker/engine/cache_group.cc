#include "worker/engine/cache_group.h"

#include <numeric>

#include "kvstore/block/key_chain.h"

namespace kvmesh {

CacheGroup ChainGroup(BlockStore& store) {
  CacheGroup group{.store = &store, .layers = {}};
  group.layers.resize(static_cast<size_t>(store.device().layout().layers));
  std::iota(group.layers.begin(), group.layers.end(), 0);
  return group;
}

BlockStore::SealInfo InGroup(const BlockStore::SealInfo& chain, uint32_t group) {
  BlockStore::SealInfo own = chain;
  own.group = group;
  own.key = ComputeGroupKey(chain.key, group);
  if (chain.index > 0) own.parent = ComputeGroupKey(chain.parent, group);
  return own;
}

std::vector<CacheGroup> GroupsUnder(const StreamingPolicy& policy, const std::vector<CacheGroup>& groups) {
  if (!policy.streams()) return groups;
  CacheGroup streaming = groups[0];
  streaming.number = 1;
  streaming.window = policy.window;
  streaming.sinks = policy.sinks;
  return {streaming};
}

}  // namespace kvmesh
