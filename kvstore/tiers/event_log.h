// The numbered record of every change of a worker's three sets. One writer (the block store, in its own order), any
// number of readers with their own cursors (one per coordinator).
#ifndef KVMESH_KVSTORE_TIERS_EVENT_LOG_H_
#define KVMESH_KVSTORE_TIERS_EVENT_LOG_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "kvstore/base/mutex.h"
#include "kvstore/block/set_digest.h"
#include "kvstore/pool/prefix_map.h"

namespace kvmesh {

struct StoreEvent {
  // kUsable, kUnusable: a boundary of a model with windows (window_boundaries.h).
  enum class Kind { kStored, kTruncated, kDigest, kUsable, kUnusable };
  uint64_t sequence = 0;  // contiguous from 1
  Kind kind = Kind::kStored;
  BlockSetKind set = BlockSetKind::kDevice;
  RootKey root;                // kStored
  BlockKey parent;             // kStored
  BlockKey key;                // of all but kDigest
  uint32_t index = 0;          // kStored
  LossyFormats lossy_formats;  // kStored
  SetDigest digest;            // kDigest
};

class EventLog;

// A callback that runs with each append to a log, until this object is destroyed. Move-only; outlived by its log.
class AppendHook {
 public:
  AppendHook(AppendHook&& other) noexcept : log_(std::exchange(other.log_, nullptr)), id_(other.id_) {}
  AppendHook& operator=(AppendHook&&) = delete;
  // Returns when the callback is not running and never will again.
  ~AppendHook();

 private:
  friend class EventLog;
  AppendHook(EventLog* log, uint64_t id) : log_(log), id_(id) {}

  EventLog* log_;
  uint64_t id_;
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
  // Runs `on_append` with each later Append, after the event can be read. A reader that finds nothing after its cursor,
  // and then waits for what the callback sets, misses none. The callback runs under the writer's locks: it must be
  // quick, and call neither the log nor the store.
  [[nodiscard]] AppendHook OnAppend(std::function<void()> on_append);

 private:
  friend class AppendHook;

  const size_t capacity_;
  mutable Mutex mu_;
  std::deque<StoreEvent> events_ ABSL_GUARDED_BY(mu_);
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, std::function<void()>> hooks_ ABSL_GUARDED_BY(mu_);
  uint64_t next_hook_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_EVENT_LOG_H_
