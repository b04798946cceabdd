// Time as an injected dependency: production code asks a Clock, tests and replays move one by hand.
#ifndef KVMESH_KVSTORE_BASE_CLOCK_H_
#define KVMESH_KVSTORE_BASE_CLOCK_H_

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kvstore/base/mutex.h"

namespace kvmesh {

// Thread safe. `Now` is wall-clock time; it may be compared across processes of one cluster (tickets, leases).
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;

  // The system's clock; never destroyed.
  static const Clock& Real();
};

// Moves only when told to.
class ManualClock : public Clock {
 public:
  explicit ManualClock(absl::Time start) : now_(start) {}
  absl::Time Now() const override {
    MutexLock lock(mu_);
    return now_;
  }
  // Moves forward to `time`; an earlier time is ignored.
  void AdvanceTo(absl::Time time) {
    MutexLock lock(mu_);
    if (time > now_) now_ = time;
  }

 private:
  mutable Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BASE_CLOCK_H_
