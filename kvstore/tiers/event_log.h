// The numbered record of every change of a worker's three sets. One writer (the block store, in its own order), any
// number of readers with their own cursors (one per coordinator).
#ifndef KVMESH_KVSTORE_TIERS_EVENT_LOG_H_
#define KVMESH_KVSTORE_TIERS_EVENT_LOG_H_

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"
#include "kvstore/base/mutex.h"
#include "kvstore/block/set_digest.h"
#include "kvstore/pool/prefix_map.h"

namespace kvmesh {

struct StoreEvent {
  enum class Kind { kStored, kTruncated, kDigest };
  uint64_t sequence = 0;  // contiguous from 1
  Kind kind = Kind::kStored;
  BlockSetKind set = BlockSetKind::kDevice;
  RootKey root;                // kStored
  BlockKey parent;             // kStored
  BlockKey key;                // kStored, kTruncated
  uint32_t index = 0;          // kStored
  LossyFormats lossy_formats;  // kStored
  SetDigest digest;            // kDigest
};

// Thread safe. Keeps the last `capacity` events; a reader that fell behind is told so and resyncs from a snapshot.
class EventLog {
 public:
  explicit EventLog(size_t capacity) : capacity_(capacity) {}

  // Gives the event its sequence number and returns it.
  uint64_t Append(StoreEvent event);
  // Sequence number of the newest event; 0 when there was none.
  uint64_t last() const;

  // Events after `cursor`, at most `limit`. OUT_OF_RANGE: some of them were dropped.
  absl::StatusOr<std::vector<StoreEvent>> ReadAfter(uint64_t cursor, size_t limit) const;
  // Waits until an event after `cursor` exists, Wake is called, or `timeout` passed.
  void WaitAfter(uint64_t cursor, absl::Duration timeout) const;
  // Wakes all waiters once.
  void Wake();

 private:
  const size_t capacity_;
  mutable Mutex mu_;
  mutable CondVar changed_;
  std::deque<StoreEvent> events_ ABSL_GUARDED_BY(mu_);
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t wakes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_EVENT_LOG_H_
