// The workers of the cluster: who is there, who is alive, who may be placed on.
#ifndef KVMESH_COORDINATOR_REGISTRY_WORKER_REGISTRY_H_
#define KVMESH_COORDINATOR_REGISTRY_WORKER_REGISTRY_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/prefix_index/prefix_index.h"
#include "coordinator/registry/worker_entry.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"

namespace kvmesh {

struct RegistryOptions {
  absl::Duration heartbeat_interval = absl::Seconds(1);
  int missed_limit = 3;         // lost after this many intervals without a heartbeat
  uint32_t max_workers = 4096;  // live at once
  absl::Duration forget_lost_after = absl::Minutes(10);

  absl::Duration lost_after() const { return heartbeat_interval * missed_limit; }
  // INVALID_ARGUMENT naming the field.
  absl::Status Validate() const;
};

// Invariants: one live entry per worker id; every live entry has its own slot in the index. A worker that is lost or
// replaced leaves the table, and so every route, before its slot is swept.
// Thread safe. Locks: the registry's, then the index's; an entry's report_mu is never taken under the registry's.
class WorkerRegistry {
 public:
  // `index` and `clock` must outlive it. `on_gone`, which may be null, is called once for each entry that is lost or
  // replaced, outside of all locks, before its slot can be used again. REQUIRES: options.Validate().ok().
  WorkerRegistry(const RegistryOptions& options, PrefixIndex& index, const Clock& clock,
                 std::function<void(const WorkerEntry&)> on_gone);

  // The live entry of this incarnation, made if it is not there; another live incarnation of the id is replaced, its
  // index goes dark at once. Counts as a heartbeat. INVALID_ARGUMENT naming the field. RESOURCE_EXHAUSTED: max_workers.
  absl::StatusOr<std::shared_ptr<WorkerEntry>> Register(const WorkerDescription& description);

  // ABORTED: this incarnation is not live; register again.
  absl::Status Heartbeat(absl::string_view id, const Incarnation& incarnation, const HeartbeatLoad& load);

  // Takes out the workers whose heartbeats stopped, and forgets those lost long ago. Call a few times an interval.
  void ExpireLost();

  // Stops placing on a worker, or resumes, until its process ends. NOT_FOUND: no live worker of that id.
  absl::Status OrderDrain(absl::string_view id, bool draining);

  // The live workers.
  std::shared_ptr<const WorkerTable> Table() const;
  // Null: no live worker of that id.
  std::shared_ptr<WorkerEntry> Find(absl::string_view id) const;
  // Live workers and those lost not long ago.
  std::vector<std::shared_ptr<WorkerEntry>> List() const;

  // Intervals that passed without a heartbeat, over all workers, since start.
  uint64_t heartbeats_missed() const;
  // Workers that a call may be placed on at `now`, apart from their state.
  bool IsAlive(const WorkerEntry& entry, absl::Time now) const {
    return !entry.gone() && now - entry.last_heartbeat() <= options_.lost_after();
  }
  const RegistryOptions& options() const { return options_; }
  absl::Time Now() const { return clock_.Now(); }

 private:
  using Entries = absl::flat_hash_map<std::string, std::shared_ptr<WorkerEntry>>;

  void PublishTable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes room among the lost for one more.
  void KeepLost(const std::shared_ptr<WorkerEntry>& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sweeps the index of an entry that has left the table. Takes entry.report_mu.
  void Sweep(WorkerEntry& entry) ABSL_LOCKS_EXCLUDED(mu_);

  const RegistryOptions options_;
  PrefixIndex& index_;
  const Clock& clock_;
  const std::function<void(const WorkerEntry&)> on_gone_;

  mutable SharedMutex mu_;
  Entries live_ ABSL_GUARDED_BY(mu_);
  Entries lost_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const WorkerTable> table_ ABSL_GUARDED_BY(mu_);
  uint64_t heartbeats_missed_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_REGISTRY_WORKER_REGISTRY_H_
