#include "worker/server/group_tiers.h"

#include <utility>

#include "kvstore/service/log.h"
#include "kvstore/tiers/disk/slab_disk_tier.h"

namespace kvmesh {

absl::StatusOr<std::unique_ptr<GroupTiers>> GroupTiers::Open(const WorkerOptions& options, const Place& place) {
  auto tiers = std::unique_ptr<GroupTiers>(new GroupTiers());
  const absl::StatusOr<LowerLayouts> below = LayoutsBelow(options, place.layout);
  if (!below.ok()) return below.status();
  absl::StatusOr<std::unique_ptr<MemoryPool>> device = MemoryPool::Create(place.layout, options.device_blocks);
  if (!device.ok()) return device.status();
  tiers->device_ = *std::move(device);
  if (options.host_blocks > 0) {
    absl::StatusOr<std::unique_ptr<MemoryPool>> host = MemoryPool::Create(below->host, options.host_blocks);
    if (!host.ok()) return host.status();
    tiers->host_ = *std::move(host);
  }
  if (!place.disk_dir.empty()) KVMESH_RETURN_IF_ERROR(tiers->OpenDisk(options, place, below->disk));
  absl::StatusOr<EvictionPolicyFactory> policy = MakeEvictionPolicyFactory(options.policy);
  if (!policy.ok()) return policy.status();
  absl::StatusOr<std::unique_ptr<BlockStore>> store =
      BlockStore::Create({.device = tiers->device_.get(),
                          .host = tiers->host_.get(),
                          .disk = tiers->disk_.get(),
                          .disk_layout = below->disk,
                          .clock = options.clock,
                          .policy = *policy,
                          .max_pinned_fraction = options.max_pinned_fraction,
                          .block_tokens = static_cast<uint32_t>(place.layout.block_tokens),
                          .max_group = 1,
                          .boundaries = place.boundaries});
  if (!store.ok()) return store.status();
  tiers->store_ = *std::move(store);
  return tiers;
}

absl::Status GroupTiers::OpenDisk(const WorkerOptions& options, const Place& place, const BlockLayout& disk_layout) {
  disk_dir_ = place.disk_dir;
  SlabDiskOptions disk;
  disk.directory = place.disk_dir;
  disk.disk_id = options.disk_id.empty() ? options.worker_id : options.disk_id;
  disk.layout = ComputeLayoutFingerprint(disk_layout);
  disk.pool_layout = ComputeLayoutFingerprint(place.layout);
  disk.block_bytes = static_cast<uint64_t>(disk_layout.block_bytes);
  disk.byte_cap = place.disk_bytes;
  disk.free_space_floor_bytes = options.disk_floor_bytes;
  disk.catalog_reserve_bytes = options.disk_reserve_bytes;
  const DeferredDiskTier::OpenFn open = [disk, clock = options.clock]() -> absl::StatusOr<std::unique_ptr<DiskTier>> {
    return SlabDiskTier::Open(disk, {.io = nullptr, .clock = clock});
  };
  absl::StatusOr<std::unique_ptr<DiskTier>> tier = open();
  if (absl::IsResourceExhausted(tier.status())) {
    Log(LogLevel::kWarning, "worker", "no space for the disk tier: without it until there is",
        {{"directory", disk.directory}, {"error", tier.status().ToString()}});
    auto deferred = std::make_unique<DeferredDiskTier>(open, *options.clock);
    deferred_disk_ = deferred.get();
    tier = std::move(deferred);
  }
  if (!tier.ok()) return tier.status();
  disk_ = *std::move(tier);
  return absl::OkStatus();
}

void GroupTiers::Housekeep() {
  store_->FinishErases();
  if (deferred_disk_ == nullptr || !deferred_disk_->TryOpen()) return;
  store_->AdoptRecovered();
  Log(LogLevel::kInfo, "worker", "the disk tier has space and is open",
      {{"directory", disk_dir_}, {"blocks", disk_->usage().used_blocks}});
}

}  // namespace kvmesh
