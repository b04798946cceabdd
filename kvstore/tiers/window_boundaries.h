// Where sequences can go on in a model that has layers with a sliding window: the boundaries before which the window's
// blocks are held.
//
// A boundary is named by the key of the last block before it. It is usable while the window's last `needed` blocks
// before it, or all where it has fewer, are held as exact copies in any tier; what the chain must hold besides is in
// the chain's own sets. Changes become events.
#ifndef KVMESH_KVSTORE_TIERS_WINDOW_BOUNDARIES_H_
#define KVMESH_KVSTORE_TIERS_WINDOW_BOUNDARIES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "kvstore/base/mutex.h"
#include "kvstore/block/block_key.h"
#include "kvstore/tiers/event_log.h"

namespace kvmesh {

// Blocks that a window of `window` tokens reaches back over from a boundary whose last token is computed again.
inline uint32_t WindowBlocks(int64_t window, uint32_t block_tokens) {
  return static_cast<uint32_t>((window + block_tokens - 1) / block_tokens);
}

// Thread safe. A change costs O(needed blocks on each branch).
class WindowBoundaries {
 public:
  // REQUIRES: needed >= 1.
  explicit WindowBoundaries(uint32_t needed) : needed_(needed) {}

  // Changes from now on are appended to `log`, which outlives this.
  void ReportTo(EventLog& log);

  // The window's block beside the chain's `key` is there. `parent`: the chain's; `index`: in the chain. REQUIRES: not
  // held.
  void OnHeld(const BlockKey& key, const BlockKey& parent, uint32_t index);
  // REQUIRES: held.
  void OnGone(const BlockKey& key);

  // The usable ones, in no order.
  std::vector<BlockKey> All() const;

 private:
  struct Block {
    BlockKey parent;
    uint32_t index = 0;
    uint32_t run = 0;  // held blocks in a row that end here, counted up to needed_
  };
  using Blocks = absl::flat_hash_map<BlockKey, Block>;

  bool Usable(const Block& block) const { return block.run >= std::min(block.index + 1, needed_); }
  void Append(const BlockKey& key, bool usable) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint32_t RunAfter(const BlockKey& parent) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs of the blocks after `key`, on every branch, as far as they change.
  void UpdateAfter(const BlockKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint32_t needed_;
  mutable Mutex mu_;
  EventLog* log_ ABSL_GUARDED_BY(mu_) = nullptr;
  Blocks blocks_ ABSL_GUARDED_BY(mu_);
  // Held blocks by parent; those of index 0 have none that could be held.
  absl::flat_hash_map<BlockKey, absl::InlinedVector<BlockKey, 1>> children_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_WINDOW_BOUNDARIES_H_
