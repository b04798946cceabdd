// What the coordinator counts: at lookup, in tokens, predicted against actual.
#ifndef KVMESH_COORDINATOR_SERVER_COORDINATOR_METRICS_H_
#define KVMESH_COORDINATOR_SERVER_COORDINATOR_METRICS_H_

#include <array>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/placement/placer.h"
#include "coordinator/prefix_index/prefix_index.h"
#include "coordinator/registry/worker_registry.h"
#include "coordinator/route/router.h"
#include "kvmesh/v1/common.pb.h"
#include "kvstore/service/metrics.h"

namespace kvmesh {

// Thread safe.
class CoordinatorMetrics {
 public:
  // `metrics` must outlive it.
  explicit CoordinatorMetrics(Metrics& metrics);

  // `prompt_tokens` requested; `answer` when `status` is OK.
  void CountRoute(const absl::Status& status, uint64_t prompt_tokens, const RouteAnswer* answer, absl::Duration took);
  // A route that was answered and placed nothing.
  void CountLookup(absl::Duration took);
  void CountCompletion(const InFlightPlacement& placement, const v1::HitTokens& hits, bool failed);
  // Sets the gauges, and brings the counters that are kept elsewhere up to date. Not from several threads at once.
  void Collect(const WorkerRegistry& registry, const PrefixIndex& index, Placer& placer);

  uint64_t routes() const;
  uint64_t requested_tokens() const { return static_cast<uint64_t>(requested_tokens_.Value()); }
  uint64_t predicted_hit_tokens() const;
  // device, host, disk, peer
  std::array<uint64_t, 4> actual_hit_tokens() const;

 private:
  // How a route ended: on blocks at hand alone, with some pulled, on nothing, refused, or placed nowhere.
  enum Outcome { kLocal, kPeer, kCold, kInvalid, kUnavailable, kFailed, kLookup, kOutcomes };

  prometheus::Counter& requested_tokens_;
  std::array<prometheus::Counter*, 4> predicted_;  // device, memory, disk, peer
  std::array<prometheus::Counter*, 4> actual_;     // device, host, disk, peer
  std::array<prometheus::Counter*, kOutcomes> outcomes_;
  prometheus::Counter& completed_;
  prometheus::Counter& completed_failed_;
  prometheus::Counter& completed_predicted_;
  prometheus::Histogram& route_seconds_;

  std::array<prometheus::Gauge*, 4> workers_;  // by WorkerState
  prometheus::Gauge& index_blocks_;
  prometheus::Gauge& index_copies_;
  prometheus::Gauge& index_bytes_;
  prometheus::Counter& shed_blocks_;
  prometheus::Counter& adopted_digests_;
  prometheus::Gauge& in_flight_;
  prometheus::Counter& expired_;
  prometheus::Counter& dropped_;
  prometheus::Counter& heartbeats_missed_;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_COORDINATOR_METRICS_H_
