// Boundaries of one worker after which its layers with a sliding window can go on, as the worker reports them. A
// boundary is named by the key of the last block before it.
#ifndef KVMESH_COORDINATOR_REGISTRY_USABLE_BOUNDARIES_H_
#define KVMESH_COORDINATOR_REGISTRY_USABLE_BOUNDARIES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/container/flat_hash_set.h"
#include "kvstore/base/mutex.h"
#include "kvstore/block/block_key.h"

namespace kvmesh {

// Snapshots as in PrefixIndex: a hidden set is filled and swapped in whole. Thread safe.
class UsableBoundaries {
 public:
  static constexpr size_t kMaxBoundaries = size_t{1} << 22;

  explicit UsableBoundaries(size_t max_boundaries = kMaxBoundaries) : max_boundaries_(max_boundaries) {}

  // Returns how many of the keys were refused at the bound: requests will take their blocks for unusable.
  size_t Add(std::span<const BlockKey> keys);
  void Remove(std::span<const BlockKey> keys);
  void Clear();

  // Empties the hidden set.
  void ResetSnapshot();
  // As Add, to the hidden set.
  size_t AddToSnapshot(std::span<const BlockKey> keys);
  void CommitSnapshot();

  // The longest prefix of `keys`, a chain from block 0, that ends at a boundary, in blocks.
  uint32_t Longest(std::span<const BlockKey> keys) const;
  size_t size() const;

 private:
  using Keys = absl::flat_hash_set<BlockKey>;
  size_t AddTo(Keys& set, std::span<const BlockKey> keys) const;

  const size_t max_boundaries_;
  mutable SharedMutex mu_;
  Keys visible_ ABSL_GUARDED_BY(mu_);
  Keys hidden_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_REGISTRY_USABLE_BOUNDARIES_H_
