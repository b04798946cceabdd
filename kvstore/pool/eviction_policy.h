// Which evictable copy of a tier goes first.
#ifndef KVMESH_KVSTORE_POOL_EVICTION_POLICY_H_
#define KVMESH_KVSTORE_POOL_EVICTION_POLICY_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/strings/string_view.h"
#include "kvstore/base/status.h"

namespace kvmesh {

struct BlockCopy;

// A policy's mark on a copy.
struct EvictionEntry {
  bool evictable = false;
  uint64_t rank = 0;
};

// Orders the copies that may leave now: leaves without pins. The prefix map adds and removes them as that changes. Not
// thread safe.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // REQUIRES: not in the policy. `last_use` grows with time.
  virtual void Add(BlockCopy* copy, uint64_t last_use) = 0;
  // REQUIRES: in the policy.
  virtual void Remove(BlockCopy* copy) = 0;
  // The copy to evict next, or null when there is none.
  virtual BlockCopy* Victim() const = 0;
};

using EvictionPolicyFactory = std::function<std::unique_ptr<EvictionPolicy>()>;

// "lru": least recently used first. INVALID_ARGUMENT: another name.
absl::StatusOr<EvictionPolicyFactory> MakeEvictionPolicyFactory(absl::string_view name);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_POOL_EVICTION_POLICY_H_
