// Orders to workers: queued on their report streams, matched with their results, each with a deadline.
#ifndef KVMESH_COORDINATOR_REPORT_COMMAND_BOARD_H_
#define KVMESH_COORDINATOR_REPORT_COMMAND_BOARD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/report/report_metrics.h"
#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"

namespace kvmesh {

struct CommandOutcome {
  absl::Status status;
  uint64_t blocks = 0;  // pinned, fetched or erased
};

// Every command ends exactly once: with the worker's result, with UNAVAILABLE when the worker has no stream or the
// stream ends, with RESOURCE_EXHAUSTED when too many wait for that worker, or with DEADLINE_EXCEEDED. Thread safe.
class CommandBoard {
 public:
  // Puts a response on a stream's way out; must not block. False: the stream has ended.
  using Sink = std::function<bool(v1::ReportResponse)>;
  // Called once, outside of the board's lock.
  using Done = std::function<void(const CommandOutcome&)>;

  static constexpr size_t kMaxPendingPerWorker = 256;

  // `clock` and `metrics` must outlive it.
  CommandBoard(const Clock& clock, ReportMetrics& metrics) : clock_(clock), metrics_(metrics) {}

  // The worker's commands go to `sink` from now on. `session`: names the stream; a newer one takes over.
  void Attach(const std::string& worker_id, uint64_t session, Sink sink);
  // The stream has ended: its commands end with UNAVAILABLE. Ignored when a newer stream took over.
  void Detach(const std::string& worker_id, uint64_t session);

  // Gives the command an id and sends it.
  void Send(const std::string& worker_id, v1::Command command, absl::Duration timeout, Done done);
  // Sends one command to each worker and waits for all; `cancelled` is asked now and then. Results in the order given.
  std::vector<CommandOutcome> SendAll(std::vector<std::pair<std::string, v1::Command>> commands, absl::Duration timeout,
                                      const std::function<bool()>& cancelled);

  // A worker's result; one that matches no waiting command of it is counted and ignored.
  void Resolve(absl::string_view worker_id, const v1::CommandResult& result);
  // Ends commands whose deadline has passed. Call a few times a second.
  void Expire();

  // A fresh name for a stream.
  uint64_t NewSession();

 private:
  struct Stream {
    uint64_t session = 0;
    std::shared_ptr<Sink> sink;
    size_t pending = 0;
  };
  struct Pending {
    std::string worker_id;
    absl::Time deadline;
    Done done;
  };

  // Takes out the pending command; false when it ended before.
  bool Take(uint64_t id, absl::string_view worker_id, Pending& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<Pending> TakeAllOf(absl::string_view worker_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock& clock_;
  ReportMetrics& metrics_;
  Mutex mu_;
  absl::flat_hash_map<std::string, Stream> streams_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Pending> pending_ ABSL_GUARDED_BY(mu_);
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t next_session_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_REPORT_COMMAND_BOARD_H_
