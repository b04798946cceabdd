#include "kvstore/tiers/store_books.h"

namespace kvmesh {
namespace {

template <size_t kCount>
void AddAll(const std::array<uint64_t, kCount>& from, std::array<uint64_t, kCount>& to) {
  for (size_t i = 0; i < kCount; ++i) to[i] += from[i];
}

}  // namespace

absl::string_view MissReasonName(MissReason reason) {
  switch (reason) {
    case MissReason::kAbsent:
      return "absent";
    case MissReason::kCorrupt:
      return "corrupt";
    case MissReason::kIoError:
      return "io_error";
    case MissReason::kPinLimit:
      return "pin_limit";
    case MissReason::kPoolFull:
      return "pool_full";
    case MissReason::kDeadline:
      return "deadline";
    case MissReason::kLossy:
      return "lossy";
  }
  return "unknown";
}

void StoreBooks::Add(const StoreBooks& other) {
  for (size_t i = 0; i < tiers.size(); ++i) {
    tiers[i].capacity += other.tiers[i].capacity;
    tiers[i].used += other.tiers[i].used;
  }
  pinned_blocks += other.pinned_blocks;
  read_pins += other.read_pins;
  private_blocks += other.private_blocks;
  disk_writable = disk_writable && other.disk_writable;
  disk_errors += other.disk_errors;
  AddAll(other.evictions, evictions);
  AddAll(other.misses, misses);
  AddAll(other.promoted_bytes, promoted_bytes);
  AddAll(other.demoted_bytes, demoted_bytes);
  AddAll(other.lossy_promotions, lossy_promotions);
  AddAll(other.lossy_demotions, lossy_demotions);
  for (size_t tier = 0; tier < conversions.size(); ++tier) {
    for (size_t way = 0; way < conversions[tier].size(); ++way) {
      conversions[tier][way].blocks += other.conversions[tier][way].blocks;
      conversions[tier][way].time += other.conversions[tier][way].time;
    }
  }
}

}  // namespace kvmesh
