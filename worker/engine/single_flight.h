// One request at a time fetches or computes a block; the others wait for it.
#ifndef KVMESH_WORKER_ENGINE_SINGLE_FLIGHT_H_
#define KVMESH_WORKER_ENGINE_SINGLE_FLIGHT_H_

#include <cstddef>
#include <deque>
#include <span>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/mutex.h"
#include "kvstore/block/block_key.h"

namespace kvmesh {

// Thread safe. A claim is a promise to produce the block or to let go; waiting holds no claim, so waits cannot cycle.
class SingleFlight {
 public:
  // Holds keys, in chain order, until they are finished or the claim dies. Move-only; outlived by its SingleFlight.
  class Claim {
   public:
    Claim() = default;
    Claim(Claim&& other) noexcept { *this = std::move(other); }
    Claim& operator=(Claim&& other) noexcept;
    ~Claim() { Reset(); }
    void Reset();
    // Lets go of the leading keys up to and including `key`; nothing when it is not held.
    void FinishThrough(const BlockKey& key);
    size_t size() const { return keys_.size(); }

   private:
    friend class SingleFlight;
    SingleFlight* owner_ = nullptr;
    std::deque<BlockKey> keys_;
  };

  explicit SingleFlight(const Clock& clock) : clock_(clock) {}

  // Claims the leading keys that nobody holds, possibly none.
  Claim ClaimLeading(std::span<const BlockKey> keys);
  bool IsClaimed(const BlockKey& key) const;
  // Waits until nobody holds `key`. False: the deadline came first.
  bool Wait(const BlockKey& key, absl::Time deadline) const;
  size_t claimed() const;

 private:
  void Release(std::span<const BlockKey> keys);

  const Clock& clock_;
  mutable Mutex mu_;
  mutable CondVar released_;
  absl::flat_hash_set<BlockKey> claimed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_ENGINE_SINGLE_FLIGHT_H_
