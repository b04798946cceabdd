// Which slots exist, what each holds, and which one is taken next. Not thread safe.
#ifndef KVMESH_KVSTORE_TIERS_DISK_SLOT_TABLE_H_
#define KVMESH_KVSTORE_TIERS_DISK_SLOT_TABLE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kvstore/base/strong_int.h"
#include "kvstore/block/block_key.h"

namespace kvmesh {

// Life of a slot: absent -> free -> writing -> used -> erasing -> free. A failed write goes back to free, or to bad
// when the device refused it; bad slots stay so until the next open.
//
// Invariants: `free_` names each free slot once and no other; used() counts used and erasing slots.
class SlotTable {
 public:
  // Makes absent slots [first, first + count) free.
  void AddFree(uint64_t first, uint64_t count);
  // Recovery: a free slot becomes used. False when it is not free.
  bool Claim(DiskSlot slot, const BlockKey& key);
  // Recovery, after claims: makes the lowest slots come first.
  void SortFree();

  // A free slot, now in writing. nullopt: none is free.
  std::optional<DiskSlot> Take();
  // Ends a write. REQUIRES: the slot is in writing.
  void FinishWrite(DiskSlot slot, const BlockKey& key);
  void AbortWrite(DiskSlot slot);
  void MarkBad(DiskSlot slot);

  // The key in a used slot, now erasing. nullopt: the slot is not used.
  std::optional<BlockKey> BeginErase(DiskSlot slot);
  // REQUIRES: the slot is erasing.
  void FinishErase(DiskSlot slot);

  bool IsUsed(DiskSlot slot) const;
  const BlockKey& KeyOf(DiskSlot slot) const { return entries_[slot.value()].key; }
  uint64_t used() const { return used_; }
  uint64_t free() const { return free_.size(); }

 private:
  enum class State : uint8_t { kAbsent, kFree, kWriting, kUsed, kErasing, kBad };
  struct Entry {
    BlockKey key;
    State state = State::kAbsent;
  };

  std::vector<Entry> entries_;
  std::vector<uint64_t> free_;  // taken from the back
  uint64_t used_ = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_DISK_SLOT_TABLE_H_
