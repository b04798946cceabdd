// Waits for news in an event log.
#ifndef KVMESH_TESTS_SUPPORT_LOG_WAITER_H_
#define KVMESH_TESTS_SUPPORT_LOG_WAITER_H_

#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kvstore/base/mutex.h"
#include "kvstore/tiers/event_log.h"
#include "tests/support/gate.h"

namespace kvmesh {

// Outlived by its log. Thread safe.
class LogWaiter {
 public:
  explicit LogWaiter(EventLog& log) : log_(log), hook_(log.OnAppend([this] { NoteAppend(); })) {}

  // True when the log has an event after `cursor` before `patience` ends.
  bool AwaitAfter(uint64_t cursor, absl::Duration patience = kTestPatience) {
    const absl::Time deadline = absl::Now() + patience;
    while (true) {
      const uint64_t seen = appends();
      if (log_.last() > cursor) return true;
      MutexLock lock(mu_);
      while (appends_ == seen) {
        if (absl::Now() >= deadline) return false;
        changed_.WaitFor(lock, deadline - absl::Now());
      }
    }
  }

 private:
  void NoteAppend() {
    {
      MutexLock lock(mu_);
      ++appends_;
    }
    changed_.NotifyAll();
  }
  uint64_t appends() const {
    MutexLock lock(mu_);
    return appends_;
  }

  EventLog& log_;
  mutable Mutex mu_;
  CondVar changed_;
  uint64_t appends_ ABSL_GUARDED_BY(mu_) = 0;
  const AppendHook hook_;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SUPPORT_LOG_WAITER_H_
