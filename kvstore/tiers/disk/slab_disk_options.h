// Options of the slab disk tier.
#ifndef KVMESH_KVSTORE_TIERS_DISK_SLAB_DISK_OPTIONS_H_
#define KVMESH_KVSTORE_TIERS_DISK_SLAB_DISK_OPTIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kvstore/base/status.h"
#include "kvstore/block/block_header.h"
#include "kvstore/tiers/disk/file_io.h"

namespace kvmesh {

inline constexpr size_t kMaxDiskIdBytes = 128;
inline constexpr uint32_t kMaxSlotsPerSlab = 1u << 20;

struct SlabDiskOptions {
  // Created when absent. One process at a time owns it.
  std::string directory;
  // Who owns the directory: 1 to kMaxDiskIdBytes characters of [A-Za-z0-9_.-]. Another id is refused.
  std::string disk_id;
  // Of every block in the tier. A directory that was written with another layout or block size is emptied.
  LayoutFingerprint layout;
  // Of the pool that the blocks come from, by default `layout`. A directory that was written from another pool is
  // emptied: what is exact to one format need not be so to another.
  std::optional<LayoutFingerprint> pool_layout;
  // Payload of every block, 1 to kMaxBlockBytes.
  uint64_t block_bytes = 0;
  // Most bytes of slab files, 0 for no cap. The catalog and its reserve come on top.
  uint64_t byte_cap = 0;
  // Slab files do not grow when the file system would have fewer bytes left than this.
  uint64_t free_space_floor_bytes = uint64_t{1} << 30;
  // Bytes kept in a ballast file and given back when the catalog finds no room. 0 keeps none. Below about twice the
  // catalog's write buffer (8 MiB) it may not be enough to heal.
  uint64_t catalog_reserve_bytes = uint64_t{64} << 20;
  // Slots of one slab file, 1 to kMaxSlotsPerSlab. An existing directory keeps the number that it was made with.
  uint32_t slots_per_slab = 1024;
};

// INVALID_ARGUMENT naming the field.
absl::Status ValidateSlabDiskOptions(const SlabDiskOptions& options);

// A slot: one page with the encoded header, then the payload, padded to whole pages. The page costs nothing against
// packing for payloads of whole pages, and lets them be read straight into the caller's memory.
constexpr uint64_t PaddedPayloadBytes(uint64_t block_bytes) {
  return (block_bytes + kDiskPageBytes - 1) / kDiskPageBytes * kDiskPageBytes;
}
constexpr uint64_t SlotBytes(uint64_t block_bytes) { return kDiskPageBytes + PaddedPayloadBytes(block_bytes); }

using EncodedHeader = std::array<std::byte, kBlockHeaderBytes>;
static_assert(kBlockHeaderBytes <= kDiskPageBytes);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_DISK_SLAB_DISK_OPTIONS_H_
