#include "worker/engine/single_flight.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvmesh {

SingleFlight::Claim& SingleFlight::Claim::operator=(Claim&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  owner_ = std::exchange(other.owner_, nullptr);
  id_ = other.id_;
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
  owner_->Release(id_, done);
}

absl::Time SingleFlight::StaleAt(const BlockKey& key) const {
  const auto it = claimed_.find(key);
  return it == claimed_.end() ? absl::InfinitePast() : holders_.at(it->second).last_sign + max_idle_;
}

SingleFlight::Claim SingleFlight::ClaimLeading(std::span<const BlockKey> keys) {
  Claim claim;
  claim.owner_ = this;
  MutexLock lock(mu_);
  claim.id_ = next_claim_++;
  const absl::Time now = clock_.Now();
  for (const BlockKey& key : keys) {
    if (StaleAt(key) > now) break;
    Drop(key);
    claimed_.emplace(key, claim.id_);
    claim.keys_.push_back(key);
  }
  if (!claim.keys_.empty()) holders_.emplace(claim.id_, Holder{claim.keys_.size(), now});
  return claim;
}

bool SingleFlight::Wait(const BlockKey& key, absl::Time deadline) const {
  MutexLock lock(mu_);
  if (StaleAt(key) <= clock_.Now()) return true;
  if (waiters_ == kMaxWaiters) return false;
  ++waiters_;
  bool free = false;
  while (!free) {
    const absl::Time now = clock_.Now();
    const absl::Time stale_at = StaleAt(key);
    free = stale_at <= now;
    if (!free && deadline <= now) break;
    if (!free) released_.WaitFor(lock, std::min(deadline, stale_at) - now);
  }
  --waiters_;
  return free;
}

size_t SingleFlight::claimed() const {
  MutexLock lock(mu_);
  return claimed_.size();
}

void SingleFlight::Release(uint64_t claim, std::span<const BlockKey> keys) {
  {
    MutexLock lock(mu_);
    if (const auto holder = holders_.find(claim); holder != holders_.end()) holder->second.last_sign = clock_.Now();
    for (const BlockKey& key : keys) {
      const auto it = claimed_.find(key);
      if (it != claimed_.end() && it->second == claim) Drop(key);
    }
  }
  released_.NotifyAll();
}

void SingleFlight::Drop(const BlockKey& key) {
  const auto it = claimed_.find(key);
  if (it == claimed_.end()) return;
  const auto holder = holders_.find(it->second);
  if (--holder->second.keys == 0) holders_.erase(holder);
  claimed_.erase(it);
}

}  // namespace kvmesh
