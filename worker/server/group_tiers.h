// One layer group's device pool, host arena, disk and block store, opened and closed in order.
#ifndef KVMESH_WORKER_SERVER_GROUP_TIERS_H_
#define KVMESH_WORKER_SERVER_GROUP_TIERS_H_

#include <memory>
#include <string>

#include "kvstore/base/status.h"
#include "kvstore/pool/block_pool.h"
#include "kvstore/tiers/block_store.h"
#include "kvstore/tiers/deferred_disk_tier.h"
#include "kvstore/tiers/disk_tier.h"
#include "worker/server/worker_options.h"

namespace kvmesh {

// Thread safe once open.
class GroupTiers {
 public:
  struct Place {
    BlockLayout layout;                      // of the pool
    std::string disk_dir;                    // empty: no disk tier
    uint64_t disk_bytes;                     // byte cap; 0: none
    WindowBoundaries* boundaries = nullptr;  // of the model's windows, where it has some
  };
  // The rest is as `options` says. INVALID_ARGUMENT naming the option; errors of the disk name the file. A disk without
  // space opens later.
  static absl::StatusOr<std::unique_ptr<GroupTiers>> Open(const WorkerOptions& options, const Place& place);

  BlockStore& store() { return *store_; }
  BlockPool& device() { return *device_; }

  // Frees what erases left behind, and opens a disk that had no space. Called every fraction of a second.
  void Housekeep();

 private:
  GroupTiers() = default;
  absl::Status OpenDisk(const WorkerOptions& options, const Place& place, const BlockLayout& disk_layout);

  // In order of dependence: each uses those above it.
  std::unique_ptr<MemoryPool> device_;
  std::unique_ptr<MemoryPool> host_;
  std::unique_ptr<DiskTier> disk_;
  DeferredDiskTier* deferred_disk_ = nullptr;  // disk_, when there was no space to open it at the start
  std::unique_ptr<BlockStore> store_;
  std::string disk_dir_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_SERVER_GROUP_TIERS_H_
