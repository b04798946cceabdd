// One request at a time fetches or computes a block; the others wait for it.
#ifndef KVMESH_WORKER_ENGINE_SINGLE_FLIGHT_H_
#define KVMESH_WORKER_ENGINE_SINGLE_FLIGHT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/mutex.h"
#include "kvstore/block/block_key.h"

namespace kvmesh {

// Thread safe. A claim is a promise to produce the block or to let go; waiting holds no claim, so waits cannot cycle. A
// claim that has let go of no key for `max_idle` is stale: nobody waits for its keys, and others may claim them.
class SingleFlight {
 public:
  // Holds keys, in chain order, until they are finished, the claim dies, or another takes them over from a stale one.
  // Move-only; outlived by its SingleFlight.
  class Claim {
   public:
    Claim() = default;
    Claim(Claim&& other) noexcept { *this = std::move(other); }
    Claim& operator=(Claim&& other) noexcept;
    ~Claim() { Reset(); }
    void Reset();
    // Lets go of the leading keys up to and including `key`; nothing when it is not among them.
    void FinishThrough(const BlockKey& key);
    // Keys claimed and not let go of, those that were taken over included.
    size_t size() const { return keys_.size(); }

   private:
    friend class SingleFlight;
    SingleFlight* owner_ = nullptr;
    uint64_t id_ = 0;
    std::deque<BlockKey> keys_;
  };

  explicit SingleFlight(const Clock& clock, absl::Duration max_idle = absl::InfiniteDuration())
      : clock_(clock), max_idle_(max_idle) {}

  // Claims the leading keys that nobody holds, or a stale claim does; possibly none.
  Claim ClaimLeading(std::span<const BlockKey> keys);
  // Waits at a time, so that they never hold all the threads of a server.
  static constexpr size_t kMaxWaiters = 64;

  // Waits until nobody holds `key`, or a stale claim does. False: the deadline came first, or kMaxWaiters wait already.
  bool Wait(const BlockKey& key, absl::Time deadline) const;
  size_t claimed() const;

 private:
  struct Holder {
    size_t keys = 0;       // that it holds
    absl::Time last_sign;  // when it was made, or let go of a key
  };

  // Lets go of those of the keys that the claim still holds.
  void Release(uint64_t claim, std::span<const BlockKey> keys);
  // When the claim that holds `key` becomes stale; the infinite past when none holds it.
  absl::Time StaleAt(const BlockKey& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Drop(const BlockKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock& clock_;
  const absl::Duration max_idle_;
  mutable Mutex mu_;
  mutable CondVar released_;
  mutable size_t waiters_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<BlockKey, uint64_t> claimed_ ABSL_GUARDED_BY(mu_);  // to claims
  absl::flat_hash_map<uint64_t, Holder> holders_ ABSL_GUARDED_BY(mu_);
  uint64_t next_claim_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_ENGINE_SINGLE_FLIGHT_H_
