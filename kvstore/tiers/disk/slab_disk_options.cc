#include "kvstore/tiers/disk/slab_disk_options.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace kvmesh {

absl::Status ValidateSlabDiskOptions(const SlabDiskOptions& options) {
  if (options.directory.empty()) return absl::InvalidArgumentError("directory: empty");
  if (options.disk_id.empty()) return absl::InvalidArgumentError("disk_id: empty");
  if (options.disk_id.size() > kMaxDiskIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("disk_id: longer than ", kMaxDiskIdBytes, " bytes"));
  }
  for (const char c : options.disk_id) {
    if (!absl::ascii_isalnum(c) && c != '_' && c != '.' && c != '-') {
      return absl::InvalidArgumentError("disk_id: a character outside [A-Za-z0-9_.-]");
    }
  }
  if (options.block_bytes == 0 || options.block_bytes > static_cast<uint64_t>(kMaxBlockBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_bytes: ", options.block_bytes, " is outside 1..", kMaxBlockBytes));
  }
  if (options.byte_cap != 0 && options.byte_cap < SlotBytes(options.block_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("byte_cap: ", options.byte_cap, " holds no slot of ", SlotBytes(options.block_bytes), " bytes"));
  }
  if (options.slots_per_slab == 0 || options.slots_per_slab > kMaxSlotsPerSlab) {
    return absl::InvalidArgumentError(
        absl::StrCat("slots_per_slab: ", options.slots_per_slab, " is outside 1..", kMaxSlotsPerSlab));
  }
  return absl::OkStatus();
}

}  // namespace kvmesh
