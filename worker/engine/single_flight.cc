#include "worker/engine/single_flight.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvmesh {

SingleFlight::Claim& SingleFlight::Claim::operator=(Claim&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  owner_ = std::exchange(other.owner_, nullptr);
  keys_ = std::exchange(other.keys_, {});
  return *this;
}

void SingleFlight::Claim::Reset() {
  if (!keys_.empty()) FinishThrough(BlockKey(keys_.back()));
  owner_ = nullptr;
}

void SingleFlight::Claim::FinishThrough(const BlockKey& key) {
  const auto it = std::find(keys_.begin(), keys_.end(), key);
  if (it == keys_.end()) return;
  const std::vector<BlockKey> done(keys_.begin(), it + 1);
  keys_.erase(keys_.begin(), it + 1);
  owner_->Release(done);
}

SingleFlight::Claim SingleFlight::ClaimLeading(std::span<const BlockKey> keys) {
  Claim claim;
  claim.owner_ = this;
  MutexLock lock(mu_);
  for (const BlockKey& key : keys) {
    if (!claimed_.insert(key).second) break;
    claim.keys_.push_back(key);
  }
  return claim;
}

bool SingleFlight::IsClaimed(const BlockKey& key) const {
  MutexLock lock(mu_);
  return claimed_.contains(key);
}

bool SingleFlight::Wait(const BlockKey& key, absl::Time deadline) const {
  MutexLock lock(mu_);
  while (claimed_.contains(key)) {
    const absl::Duration left = deadline - clock_.Now();
    if (left <= absl::ZeroDuration()) return false;
    released_.WaitFor(lock, left);
  }
  return true;
}

size_t SingleFlight::claimed() const {
  MutexLock lock(mu_);
  return claimed_.size();
}

void SingleFlight::Release(std::span<const BlockKey> keys) {
  {
    MutexLock lock(mu_);
    for (const BlockKey& key : keys) claimed_.erase(key);
  }
  released_.NotifyAll();
}

}  // namespace kvmesh
