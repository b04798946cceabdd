// A place in a stand-in where threads can be held, and where a test can await that they arrived.
#ifndef KVMESH_TESTS_SUPPORT_GATE_H_
#define KVMESH_TESTS_SUPPORT_GATE_H_

#include <gtest/gtest.h>

#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kvstore/base/mutex.h"

namespace kvmesh {

// How long a test waits for what must happen before it gives up and fails.
inline constexpr absl::Duration kTestPatience = absl::Seconds(60);

// Open at first. Thread safe. The destructor must not run while threads are held.
class Gate {
 public:
  void Close() {
    MutexLock lock(mu_);
    open_ = false;
  }
  void Open() {
    MutexLock lock(mu_);
    open_ = true;
    changed_.NotifyAll();
  }
  // Called by the stand-in: counts the arrival, then waits until the gate is open; fails the test when it stays closed.
  void Pass() {
    MutexLock lock(mu_);
    ++arrivals_;
    ++waiting_;
    changed_.NotifyAll();
    const absl::Time deadline = absl::Now() + kTestPatience;
    while (!open_ && absl::Now() < deadline) changed_.WaitFor(lock, deadline - absl::Now());
    EXPECT_TRUE(open_) << "the gate stayed closed";
    --waiting_;
  }
  // True when `count` threads stand at the gate before `patience` ends.
  bool AwaitWaiting(uint64_t count, absl::Duration patience = kTestPatience) {
    const absl::Time deadline = absl::Now() + patience;
    MutexLock lock(mu_);
    while (waiting_ < count) {
      if (absl::Now() >= deadline) return false;
      changed_.WaitFor(lock, deadline - absl::Now());
    }
    return true;
  }
  // Passes so far, those still waiting included.
  uint64_t arrivals() const {
    MutexLock lock(mu_);
    return arrivals_;
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mu_) = true;
  uint64_t arrivals_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SUPPORT_GATE_H_
