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

std::vector<CacheGroup> GroupsUnder(const StreamingPolicy& policy, const std::vector<CacheGroup>& groups) {
  if (!policy.streams()) return groups;
  CacheGroup streaming = groups[0];
  streaming.number = 1;
  streaming.window = policy.window;
  streaming.sinks = policy.sinks;
  return {streaming};
}

}  // namespace kvmesh
