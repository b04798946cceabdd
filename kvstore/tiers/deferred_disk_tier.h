// A disk tier that could not be opened for want of space, and is opened once there is some.
#ifndef KVMESH_KVSTORE_TIERS_DEFERRED_DISK_TIER_H_
#define KVMESH_KVSTORE_TIERS_DEFERRED_DISK_TIER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"
#include "kvstore/tiers/disk_tier.h"

namespace kvmesh {

// closed -> open (TryOpen) -> serving (TakeRecovered). Until it serves it is a disk without room: it holds nothing, and
// writes are refused. Thread safe.
class DeferredDiskTier : public DiskTier {
 public:
  using OpenFn = std::function<absl::StatusOr<std::unique_ptr<DiskTier>>()>;

  static constexpr absl::Duration kRetryInterval = absl::Seconds(1);

  // `clock` outlives it.
  DeferredDiskTier(OpenFn open, const Clock& clock) : open_(std::move(open)), clock_(clock) {}

  // While closed, calls `open` when the last call was kRetryInterval ago. True: it opened just now, and the store is to
  // take over what was recovered (BlockStore::AdoptRecovered). One call at a time.
  bool TryOpen();

  absl::StatusOr<DiskSlot> Write(const BlockHeader& header, std::span<const std::byte> payload) override;
  void Read(std::span<ReadRequest> requests) override;
  void Erase(DiskSlot slot) override;
  void FinishErases() override;
  // Empty while it is closed. Call once more after it opened.
  std::vector<RecoveredBlock> TakeRecovered() override;
  // io_errors counts each `open` that failed.
  Usage usage() const override;

 private:
  // Null until it serves.
  DiskTier* serving() const;

  const OpenFn open_;
  const Clock& clock_;
  mutable Mutex mu_;
  std::unique_ptr<DiskTier> tier_ ABSL_GUARDED_BY(mu_);  // set once
  bool serving_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t failures_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time last_try_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_DEFERRED_DISK_TIER_H_
