// One layer group's blocks of one sequence, in order: sealed and pinned, its own, or dropped.
#ifndef KVMESH_WORKER_ENGINE_GROUP_TABLE_H_
#define KVMESH_WORKER_ENGINE_GROUP_TABLE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "kvstore/base/status.h"
#include "kvstore/tiers/block_store.h"
#include "worker/engine/cache_group.h"

namespace kvmesh {

// A sealed block at its place in a sequence.
struct HeldBlock {
  uint32_t index = 0;
  BlockPin pin;
};

// Not thread safe. Outlived by its group's store.
class GroupTable {
 public:
  explicit GroupTable(CacheGroup group);

  const CacheGroup& group() const { return group_; }
  size_t size() const { return entries_.size(); }
  bool held(size_t i) const { return entries_[i].sealed || entries_[i].own; }
  bool sealed(size_t i) const { return static_cast<bool>(entries_[i].sealed); }
  // Ids in order, kNoBlock where a block was dropped.
  std::vector<uint32_t> ids() const;
  // The slot of `position`. REQUIRES: its block is held.
  int64_t Slot(uint64_t position) const {
    return int64_t{entries_[position / block_tokens_].block().value()} * block_tokens_ +
           static_cast<int64_t>(position % block_tokens_);
  }

  // The first `boundary` blocks, of which `held` are there. REQUIRES: empty.
  void Adopt(std::vector<HeldBlock> held, size_t boundary);
  // Private blocks at the end, until there are `blocks`. RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED: as
  // BlockStore::Allocate; what was allocated stays until Shrink.
  absl::Status Grow(size_t blocks, absl::Time deadline);
  void Shrink(size_t blocks) {
    if (entries_.size() > blocks) entries_.resize(blocks);
  }
  // Seals the private block that `info`, apart from its group, stands for. As BlockStore::Seal.
  absl::Status Seal(const BlockStore::SealInfo& info);
  // Lets go of the full blocks before `position` that no query there or later reads.
  void DropUnseen(uint64_t position);
  // Block `i` becomes the sequence's own: its content is copied if it was sealed, and undefined if it was dropped.
  // RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED: no room; nothing changed.
  absl::Status MakeOwn(size_t i, absl::Time deadline);
  // Pins a sealed block that was dropped again. False: it is gone.
  bool Regain(size_t i, const BlockKey& chain_key, LossyFormats accepted, absl::Time deadline);
  // Sealed blocks shared, private ones copied. RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED: no room for the copies.
  absl::StatusOr<GroupTable> Fork(absl::Time deadline) const;

 private:
  // At most one is set; neither: dropped.
  struct Entry {
    BlockPin sealed;
    PrivateBlock own;
    BlockId block() const { return sealed ? sealed.block() : own.block(); }
  };

  absl::StatusOr<PrivateBlock> CopyOf(BlockId block, absl::Time deadline) const;

  CacheGroup group_;
  uint32_t block_tokens_;
  std::vector<Entry> entries_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_ENGINE_GROUP_TABLE_H_
