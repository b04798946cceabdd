// Turns new events of a log into a call, for a thread that waits for other things as well.
#ifndef KVMESH_WORKER_REPORT_LOG_WATCHER_H_
#define KVMESH_WORKER_REPORT_LOG_WATCHER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "kvstore/base/mutex.h"
#include "kvstore/tiers/event_log.h"

namespace kvmesh {

// Costs nothing but a thread while it is not armed. Thread safe.
class LogWatcher {
 public:
  // `log` outlives it.
  LogWatcher(EventLog& log, std::function<void()> on_events);
  // Returns when no call runs or will come; may take up to kMaxWait.
  ~LogWatcher();

  // Calls `on_events` once, on the watcher's thread, as soon as the log has an event after `cursor`. Replaces what it
  // was armed with before.
  void Arm(uint64_t cursor);

  // A wake-up of the log can be missed by a waiter that is about to begin; this bounds what that costs.
  static constexpr absl::Duration kMaxWait = absl::Milliseconds(100);

 private:
  void Run();

  EventLog& log_;
  const std::function<void()> on_events_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<uint64_t> armed_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_REPORT_LOG_WATCHER_H_
