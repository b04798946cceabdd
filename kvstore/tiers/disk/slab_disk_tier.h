// The disk tier over slab files and a RocksDB catalog.
//
// Order: a write completes its slot's bytes, then the catalog entry; an erase removes the catalog entry, then frees the
// slot. Nothing waits for the device to flush. Hence a killed process leaves a valid catalog, and a power cut leaves at
// worst entries whose slots hold other or torn bytes: a Read compares the slot's header with the expected one and
// verifies the checksum, so that these are misses.
//
// States: writable; read-only after an error of the catalog or of a slab write. A read-only tier still reads; at most
// once per second a Write tries to heal it first, giving the ballast back to the file system where the catalog needs
// room. A full file system under the slabs is no such error: the write is refused and the tier stays writable.
#ifndef KVMESH_KVSTORE_TIERS_DISK_SLAB_DISK_TIER_H_
#define KVMESH_KVSTORE_TIERS_DISK_SLAB_DISK_TIER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"
#include "kvstore/tiers/disk/catalog.h"
#include "kvstore/tiers/disk/disk_directory.h"
#include "kvstore/tiers/disk/file_io.h"
#include "kvstore/tiers/disk/slab_disk_options.h"
#include "kvstore/tiers/disk/slab_files.h"
#include "kvstore/tiers/disk/slot_table.h"
#include "kvstore/tiers/disk_tier.h"

namespace kvmesh {

// What the tier takes from the world.
struct SlabDiskEnvironment {
  std::unique_ptr<FileIo> io;  // null: NewFileIo()
  const Clock* clock = &Clock::Real();
};

// Thread safe.
class SlabDiskTier : public DiskTier {
 public:
  // Claims the directory and recovers what the catalog names. A corrupt catalog, or one of another layout, pool
  // layout, block size or version, is dropped with its slots: counted in recovery_dropped, not an error.
  // INVALID_ARGUMENT: an option, by name. FAILED_PRECONDITION: another process holds the directory, or it belongs to
  // another disk id. RESOURCE_EXHAUSTED: no space for the catalog, even without the ballast. UNAVAILABLE: an I/O error.
  static absl::StatusOr<std::unique_ptr<SlabDiskTier>> Open(const SlabDiskOptions& options,
                                                            SlabDiskEnvironment environment = {});

  ~SlabDiskTier() override;

  // Beyond the statuses of DiskTier: INVALID_ARGUMENT: a payload or header of another size or layout than the tier's.
  // A key that is already there may be written again: the catalog names the newest copy, both slots stay readable, and
  // erasing the older one does not touch the newer one's entry.
  absl::StatusOr<DiskSlot> Write(const BlockHeader& header, std::span<const std::byte> payload) override;
  // Beyond the statuses of DiskTier: INVALID_ARGUMENT: `out` is not block_bytes long. After any error `out` is
  // undefined. Memory aligned to kDiskPageBytes is read into directly; other memory costs a copy.
  void Read(std::span<ReadRequest> requests) override;
  // While the tier is read-only the slot is unreadable at once and freed when the tier heals. A slot that is not in use
  // is ignored.
  void Erase(DiskSlot slot) override;
  void FinishErases() override;
  std::vector<RecoveredBlock> TakeRecovered() override;
  // capacity_blocks without a byte cap: what is used, and what the file system has room for above the floor.
  Usage usage() const override;

  // OK, or why the tier is read-only.
  absl::Status health() const;

 private:
  enum class Fault { kNone, kCatalog, kSlab };

  SlabDiskTier(const SlabDiskOptions& options, SlabDiskEnvironment environment, DiskDirectory directory);

  // Recovery (slab_disk_recovery.cc). Statuses as Open.
  absl::Status Start();
  absl::Status OpenCatalog();
  absl::Status DropContents(const DiskGeometry& geometry);
  absl::Status Recover();

  // OK when writes may go on. UNAVAILABLE: read-only, and healing is not due or failed.
  absl::Status EnsureWritable();
  // Statuses as Catalog::Heal.
  absl::Status Heal(Fault fault);
  absl::Status ReadOnlyError() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(health_mu_);
  void EnterReadOnly(Fault fault, const absl::Status& cause);
  void CountIoError() { io_errors_.fetch_add(1, std::memory_order_relaxed); }

  // A slot in writing, after growing the slabs if need be. RESOURCE_EXHAUSTED, UNAVAILABLE.
  absl::StatusOr<DiskSlot> TakeSlot();
  // Statuses as TakeSlot.
  absl::Status GrowSlabs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(space_mu_);
  // Takes the ballast back once there is plenty of space again; at most once per second.
  void RestoreBallast() ABSL_EXCLUSIVE_LOCKS_REQUIRED(space_mu_);
  // Removes the entry and frees the slot, which is erasing. False: the catalog failed, the slot stays.
  // False: the catalog could not be written.
  bool CompleteErase(DiskSlot slot);
  absl::Status CheckRead(const ReadRequest& request, std::span<const std::byte, kBlockHeaderBytes> header) const;

  const SlabDiskOptions options_;
  const uint64_t max_slots_;  // under the byte cap
  const std::unique_ptr<FileIo> io_;
  const Clock& clock_;
  const DiskDirectory directory_;
  std::unique_ptr<Catalog> catalog_;  // set by Start
  std::unique_ptr<SlabFiles> slabs_;  // set by Start
  std::vector<RecoveredBlock> recovered_ ABSL_GUARDED_BY(mu_);

  std::atomic<uint64_t> io_errors_{0};
  std::atomic<uint64_t> recovery_dropped_{0};
  std::atomic<bool> read_only_{false};

  // Only `space_mu_` is held while another of these is taken, and none across a slot's read or write.
  mutable Mutex health_mu_;
  uint64_t faults_ ABSL_GUARDED_BY(health_mu_) = 0;
  Fault fault_ ABSL_GUARDED_BY(health_mu_) = Fault::kNone;
  absl::Status cause_ ABSL_GUARDED_BY(health_mu_);
  bool healing_ ABSL_GUARDED_BY(health_mu_) = false;
  absl::Time last_heal_ ABSL_GUARDED_BY(health_mu_) = absl::InfinitePast();

  Mutex space_mu_;  // one grower at a time
  Ballast ballast_ ABSL_GUARDED_BY(space_mu_);
  absl::Time last_ballast_try_ ABSL_GUARDED_BY(space_mu_) = absl::InfinitePast();

  mutable Mutex mu_;
  SlotTable table_ ABSL_GUARDED_BY(mu_);
  std::vector<DiskSlot> pending_erases_ ABSL_GUARDED_BY(mu_);  // the catalog may still name them
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_DISK_SLAB_DISK_TIER_H_
