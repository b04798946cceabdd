// Contract of the disk tier: slots that hold one sealed block each and outlive the process.
//
// The tier stores and finds copies; which block goes, and the order of chains, is the store's to decide
// (kvstore/tiers/block_store.h). Nothing here waits for the disk to flush: the slot's own header and checksum turn a
// torn write into a miss.
#ifndef KVMESH_KVSTORE_TIERS_DISK_TIER_H_
#define KVMESH_KVSTORE_TIERS_DISK_TIER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvstore/base/status.h"
#include "kvstore/base/strong_int.h"
#include "kvstore/block/block_header.h"

namespace kvmesh {

// A block that recovery found. Its bytes were not read: a later Read verifies them.
struct RecoveredBlock {
  BlockHeader header;
  DiskSlot slot;
};

// Thread safe. Reads and writes of distinct slots run in parallel.
class DiskTier {
 public:
  virtual ~DiskTier() = default;

  struct ReadRequest {
    DiskSlot slot;
    BlockHeader expected;      // as given to Write, or as recovered
    std::span<std::byte> out;  // block_bytes
    absl::Status status;       // result
  };

  // Stores one block and catalogs it. RESOURCE_EXHAUSTED: the byte cap, the free-space floor, or a full file system;
  // nothing was stored and the caller evicts. UNAVAILABLE: the tier is read-only after an I/O or catalog error.
  virtual absl::StatusOr<DiskSlot> Write(const BlockHeader& header, std::span<const std::byte> payload) = 0;

  // Reads a batch in parallel and sets each status: OK (bytes verified against `expected`), DATA_LOSS (another header,
  // or checksum), UNAVAILABLE (I/O error).
  virtual void Read(std::span<ReadRequest> requests) = 0;

  // Gives a slot up: it holds no block from now on. Does no I/O, so that it may be called under a lock. The caller
  // guarantees that no Read of it is in progress.
  virtual void Erase(DiskSlot slot) = 0;
  // Does the I/O that erases left behind: a slot is free again, and its catalog entry gone, from then on. Write does it
  // first of all.
  virtual void FinishErases() = 0;

  // What survived the last run, in no particular order; each key once. Call once, before the first Write.
  virtual std::vector<RecoveredBlock> TakeRecovered() = 0;

  struct Usage {
    uint64_t capacity_blocks = 0;  // under the byte cap
    uint64_t used_blocks = 0;
    bool read_only = false;
    uint64_t io_errors = 0;         // since open
    uint64_t recovery_dropped = 0;  // slots that recovery found unusable
  };
  virtual Usage usage() const = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_DISK_TIER_H_
