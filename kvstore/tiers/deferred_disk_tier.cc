#include "kvstore/tiers/deferred_disk_tier.h"

#include <utility>

namespace kvmesh {

bool DeferredDiskTier::TryOpen() {
  {
    MutexLock lock(mu_);
    const absl::Time now = clock_.Now();
    // An earlier time than that of the last call: the clock was set back.
    if (tier_ != nullptr || (now >= last_try_ && now - last_try_ < kRetryInterval)) return false;
    last_try_ = now;
  }
  absl::StatusOr<std::unique_ptr<DiskTier>> opened = open_();
  MutexLock lock(mu_);
  if (!opened.ok()) {
    ++failures_;
    return false;
  }
  tier_ = *std::move(opened);
  return true;
}

DiskTier* DeferredDiskTier::serving() const {
  MutexLock lock(mu_);
  return serving_ ? tier_.get() : nullptr;
}

absl::StatusOr<DiskSlot> DeferredDiskTier::Write(const BlockHeader& header, std::span<const std::byte> payload) {
  if (DiskTier* tier = serving()) return tier->Write(header, payload);
  return absl::ResourceExhaustedError("disk: there was no space to open it");
}

void DeferredDiskTier::Read(std::span<ReadRequest> requests) {
  if (DiskTier* tier = serving()) return tier->Read(requests);
  for (ReadRequest& request : requests) request.status = absl::DataLossError("disk: it holds no block yet");
}

void DeferredDiskTier::Erase(DiskSlot slot) {
  if (DiskTier* tier = serving()) tier->Erase(slot);
}

void DeferredDiskTier::FinishErases() {
  if (DiskTier* tier = serving()) tier->FinishErases();
}

std::vector<RecoveredBlock> DeferredDiskTier::TakeRecovered() {
  MutexLock lock(mu_);
  if (tier_ == nullptr) return {};
  std::vector<RecoveredBlock> recovered = tier_->TakeRecovered();
  serving_ = true;
  return recovered;
}

DiskTier::Usage DeferredDiskTier::usage() const {
  uint64_t failures;
  {
    MutexLock lock(mu_);
    failures = failures_;
  }
  Usage out{.read_only = true};
  if (const DiskTier* tier = serving()) out = tier->usage();
  out.io_errors += failures;
  return out;
}

}  // namespace kvmesh
