// One incarnation of one worker, as the coordinator knows it.
#ifndef KVMESH_COORDINATOR_REGISTRY_WORKER_ENTRY_H_
#define KVMESH_COORDINATOR_REGISTRY_WORKER_ENTRY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/prefix_index/prefix_index.h"
#include "coordinator/registry/usable_boundaries.h"
#include "kvstore/base/bytes.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"

namespace kvmesh {

inline constexpr size_t kMaxRegistrationBytes = 256 << 10;

// After which blocks a sequence can go on from a worker's cache.
enum class BoundaryRule {
  kEvery,        // after every block in its sets
  kUsable,       // after those in its sets that are usable boundaries
  kUsableAlone,  // after usable boundaries; its sets are empty
};

// What a worker says of itself when it registers. Rates of 0 are unknown.
struct WorkerDescription {
  std::string id;
  Incarnation incarnation;
  std::string address;  // host:port, as peers and clients reach it
  uint32_t protocol_version = 0;
  uint64_t layout = 0;  // its layout fingerprint as a number; 0: none given
  uint32_t block_tokens = 0;
  uint64_t block_bytes = 0;
  double prefill_tokens_per_second = 0;
  double host_bytes_per_second = 0;
  double disk_bytes_per_second = 0;
  double peer_bytes_per_second = 0;
  bool draining = false;
  BoundaryRule boundaries = BoundaryRule::kEvery;
  std::string registration;  // its words as they came, to pass on; at most kMaxRegistrationBytes

  // INVALID_ARGUMENT naming the field.
  absl::Status Validate() const;
};

// Warming: registered, its first snapshot is not applied yet. Lost: no heartbeat for too long.
enum class WorkerState { kWarming, kReady, kDraining, kLost };

struct HeartbeatLoad {
  uint64_t queued_tokens = 0;
  uint32_t running_requests = 0;
  bool draining = false;
  double prefill_tokens_per_second = 0;  // 0: as before
};

// How far a worker's reports have been applied. Written under WorkerEntry::report_mu; the atomics may be read without.
struct ReportProgress {
  enum class Phase { kAwaitingSnapshot, kInSnapshot, kLive, kQuarantined };
  std::atomic<Phase> phase{Phase::kAwaitingSnapshot};
  std::atomic<uint64_t> applied_sequence{0};
  std::atomic<uint64_t> resyncs{0};
  uint64_t session = 0;  // the stream that may report; a newer stream takes over
  int protocol_errors = 0;
};

// Thread safe. The load fields are atomics: routes read them without a lock.
class WorkerEntry {
 public:
  WorkerEntry(WorkerDescription description, WorkerSlot slot, absl::Time now)
      : description_(std::move(description)), slot_(slot) {
    prefill_tokens_per_second_ = description_.prefill_tokens_per_second;
    draining_reported_ = description_.draining;
    Touch(now);
  }

  const WorkerDescription& description() const { return description_; }
  WorkerSlot slot() const { return slot_; }

  // Lost or replaced: its index is dark, its reports are refused.
  bool gone() const { return gone_; }
  bool warmed() const { return warmed_; }
  bool draining() const { return draining_reported_ || draining_ordered_; }
  WorkerState state() const;
  absl::Time last_heartbeat() const { return absl::FromUnixNanos(last_heartbeat_ns_); }
  uint64_t queued_tokens() const { return queued_tokens_; }
  double prefill_tokens_per_second() const { return prefill_tokens_per_second_; }

  void Touch(absl::Time now) { last_heartbeat_ns_ = absl::ToUnixNanos(now); }
  void SetLoad(const HeartbeatLoad& load);
  void SetWarmed() { warmed_ = true; }
  void OrderDrain(bool draining) { draining_ordered_ = draining; }
  void SetGone() { gone_ = true; }

  // Held while a report is applied, never across I/O. Guards the index slot: a slot is removed under it, so whoever
  // holds it and finds !gone() may change the slot.
  Mutex report_mu;
  ReportProgress progress;
  UsableBoundaries boundaries;  // changed under report_mu
  // Missed heartbeats that were counted since the last one came; only WorkerRegistry::ExpireLost touches it.
  int64_t missed_counted = 0;

 private:
  const WorkerDescription description_;
  const WorkerSlot slot_;
  std::atomic<bool> gone_{false};
  std::atomic<bool> warmed_{false};
  std::atomic<bool> draining_reported_{false};
  std::atomic<bool> draining_ordered_{false};
  std::atomic<int64_t> last_heartbeat_ns_{0};
  std::atomic<uint64_t> queued_tokens_{0};
  std::atomic<double> prefill_tokens_per_second_{0};
};

// The live workers at one moment, immutable.
struct WorkerTable {
  std::vector<std::shared_ptr<WorkerEntry>> workers;
  std::vector<uint32_t> position_by_slot;  // 1 + index in `workers`; 0: no live worker

  // Index in `workers`; -1 when the slot's worker is not live.
  int64_t Position(WorkerSlot slot) const {
    return slot.value() < position_by_slot.size() ? static_cast<int64_t>(position_by_slot[slot.value()]) - 1 : -1;
  }
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_REGISTRY_WORKER_ENTRY_H_
