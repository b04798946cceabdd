#include "kvstore/tiers/disk/slot_table.h"

#include "kvstore/base/check.h"

namespace kvmesh {

void SlotTable::AddFree(uint64_t first, uint64_t count) {
  if (entries_.size() < first + count) entries_.resize(first + count);
  for (uint64_t i = first + count; i > first; --i) {
    KVMESH_CHECK(entries_[i - 1].state == State::kAbsent, "slot in another state");
    entries_[i - 1].state = State::kFree;
    free_.push_back(i - 1);
  }
}

bool SlotTable::Claim(DiskSlot slot, const BlockKey& key) {
  if (slot.value() >= entries_.size()) return false;
  Entry& entry = entries_[slot.value()];
  if (entry.state != State::kFree) return false;
  entry = {key, State::kUsed};
  ++used_;
  return true;
}

void SlotTable::SortFree() {
  free_.clear();
  for (uint64_t i = entries_.size(); i > 0; --i) {
    if (entries_[i - 1].state == State::kFree) free_.push_back(i - 1);
  }
}

std::optional<DiskSlot> SlotTable::Take() {
  if (free_.empty()) return std::nullopt;
  const uint64_t slot = free_.back();
  free_.pop_back();
  entries_[slot].state = State::kWriting;
  return DiskSlot(slot);
}

void SlotTable::FinishWrite(DiskSlot slot, const BlockKey& key) {
  KVMESH_CHECK(entries_[slot.value()].state == State::kWriting, "slot in another state");
  entries_[slot.value()] = {key, State::kUsed};
  ++used_;
}

void SlotTable::AbortWrite(DiskSlot slot) {
  KVMESH_CHECK(entries_[slot.value()].state == State::kWriting, "slot in another state");
  entries_[slot.value()].state = State::kFree;
  free_.push_back(slot.value());
}

void SlotTable::MarkBad(DiskSlot slot) {
  KVMESH_CHECK(entries_[slot.value()].state == State::kWriting, "slot in another state");
  entries_[slot.value()].state = State::kBad;
}

std::optional<BlockKey> SlotTable::BeginErase(DiskSlot slot) {
  if (!IsUsed(slot)) return std::nullopt;
  entries_[slot.value()].state = State::kErasing;
  return entries_[slot.value()].key;
}

void SlotTable::FinishErase(DiskSlot slot) {
  KVMESH_CHECK(entries_[slot.value()].state == State::kErasing, "slot in another state");
  entries_[slot.value()].state = State::kFree;
  free_.push_back(slot.value());
  --used_;
}

bool SlotTable::IsUsed(DiskSlot slot) const {
  return slot.value() < entries_.size() && entries_[slot.value()].state == State::kUsed;
}

}  // namespace kvmesh
