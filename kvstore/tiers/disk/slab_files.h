// Slab files: fixed slots on disk, addressed by number. Slot n lies in file n / slots_per_slab. Files grow by some
// slots at a time and are never shortened while open.
//
// Bytes only: which slot is in use, and whether its bytes are the right ones, is for the callers.
#ifndef KVMESH_KVSTORE_TIERS_DISK_SLAB_FILES_H_
#define KVMESH_KVSTORE_TIERS_DISK_SLAB_FILES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"
#include "kvstore/base/strong_int.h"
#include "kvstore/block/block_header.h"
#include "kvstore/tiers/disk/aligned_buffer.h"
#include "kvstore/tiers/disk/disk_directory.h"
#include "kvstore/tiers/disk/file_io.h"
#include "kvstore/tiers/disk/slab_disk_options.h"

namespace kvmesh {

// Consecutive slots.
struct SlotRange {
  uint64_t first = 0;
  uint64_t count = 0;
};

struct SlotRead {
  DiskSlot slot;
  std::span<std::byte> payload;  // block_bytes
  absl::Status status;           // result
};

// Thread safe. Reads and writes of distinct slots run in parallel.
class SlabFiles {
 public:
  // Opens the slab files of `directory`. Files and slots at or beyond `max_slots` are deleted. `io` must outlive it.
  // UNAVAILABLE: a file cannot be opened.
  static absl::StatusOr<std::unique_ptr<SlabFiles>> Open(FileIo& io, const std::string& directory,
                                                         const DiskGeometry& geometry, uint64_t max_slots);

  // Deletes all slab files of `directory`. UNAVAILABLE: one resists.
  static absl::Status Remove(const std::string& directory);

  // Slots that the files have room for.
  std::vector<SlotRange> Present() const;

  // Adds up to `want` slots. RESOURCE_EXHAUSTED: `max_slots` is reached, or no space for even one. UNAVAILABLE: an I/O
  // error. REQUIRES: no other Grow runs.
  absl::StatusOr<SlotRange> Grow(uint64_t want);

  // Writes a whole slot and waits until the kernel has it; not for the device's flush. RESOURCE_EXHAUSTED: no space.
  // UNAVAILABLE: an I/O error. The slot's former content is lost in any case. REQUIRES: the slot is present.
  absl::Status Write(DiskSlot slot, const EncodedHeader& header, std::span<const std::byte> payload);

  // Reads whole slots in parallel and sets each status: OK, DATA_LOSS (the file ends before the slot does), UNAVAILABLE
  // (I/O error). Calls ready(i, header) for each OK one before Read returns, from any thread, once its payload is
  // complete; the header is valid during the call.
  void Read(std::span<SlotRead> reads,
            absl::FunctionRef<void(size_t, std::span<const std::byte, kBlockHeaderBytes>)> ready);

  // Reads only the header of a slot. DATA_LOSS, UNAVAILABLE as above.
  absl::StatusOr<EncodedHeader> ReadHeader(DiskSlot slot);

 private:
  struct Slab {
    UniqueFd fd;
    uint64_t slots = 0;
  };
  struct Place {
    int fd = -1;
    uint64_t offset = 0;
  };
  using ReadyFn = absl::FunctionRef<void(size_t, std::span<const std::byte, kBlockHeaderBytes>)>;

  SlabFiles(FileIo& io, std::string directory, const DiskGeometry& geometry, uint64_t max_slots);

  std::string SlabPath(uint64_t index) const;
  // Opens or creates a slab file, with direct I/O where the file system allows it.
  absl::StatusOr<UniqueFd> OpenSlab(uint64_t index) const;
  uint64_t SlabLimit(uint64_t index) const;
  // nullopt: the slot is not present.
  std::optional<Place> Locate(DiskSlot slot) const;
  absl::Status Extend(int fd, uint64_t slots, uint64_t add);
  // Writes `parts`, going on after short writes. 0 or -errno.
  int WriteAll(const Place& place, std::span<const iovec> parts);
  // One parallel pass over the reads that `todo` names; leaves those to try again in it.
  void ReadPass(std::span<SlotRead> reads, size_t first_index, std::vector<size_t>& todo, bool bounce, ReadyFn ready);

  FileIo& io_;
  const std::string directory_;
  const uint64_t block_bytes_;
  const uint64_t slot_bytes_;
  const uint64_t slots_per_slab_;
  const uint64_t max_slots_;
  AlignedBufferPool edges_;  // header page and the payload's last, partial page
  AlignedBufferPool slots_;  // whole slots, for callers' memory that direct I/O cannot use

  mutable SharedMutex mu_;
  std::vector<Slab> slabs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_DISK_SLAB_FILES_H_
