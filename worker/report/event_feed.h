// One coordinator's place in the event log of a block store.
#ifndef KVMESH_WORKER_REPORT_EVENT_FEED_H_
#define KVMESH_WORKER_REPORT_EVENT_FEED_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/tiers/block_store.h"

namespace kvmesh {

// Reads events in batches after a cursor of its own, and sees to it that digests are in the log: after `digest_events`
// changes, or `digest_interval` after a change. Several feeds share a store; a digest that one appends serves all. One
// thread at a time.
class EventFeed {
 public:
  struct Options {
    size_t batch_events = 512;
    uint64_t digest_events = 4096;
    absl::Duration digest_interval = absl::Seconds(1);
  };
  // `store` outlives it.
  EventFeed(BlockStore& store, const Options& options) : store_(store), options_(options) {}

  // The next batch begins after `cursor`.
  void Seek(uint64_t cursor);
  // Sequence number of the last event given out, or sought.
  uint64_t cursor() const { return cursor_; }

  // kFellBehind: the log no longer holds the next event, or never held the cursor; only a snapshot helps.
  enum class Outcome { kEvents, kNothing, kFellBehind };
  // Overwrites `batch` with the next events, at most `batch_events`.
  Outcome Next(v1::EventBatch& batch);
  // Time until a digest is due of which the log does not tell; infinite when none will be. Never negative.
  absl::Duration UntilDigest() const;

 private:
  using SteadyClock = std::chrono::steady_clock;

  void Track(const StoreEvent& event);
  void AppendDigestsWhenDue();

  BlockStore& store_;
  const Options options_;
  uint64_t cursor_ = 0;
  uint64_t changes_ = 0;  // read since the last digest
  SteadyClock::time_point first_change_;
  bool digest_under_way_ = false;  // appended, not read yet
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_REPORT_EVENT_FEED_H_
