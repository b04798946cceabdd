#include "coordinator/server/coordinator_metrics.h"

#include <vector>

namespace kvmesh {
namespace {

// A route takes microseconds; 1 us to 1 s.
std::vector<double> RouteBuckets() {
  return {1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 1e-1, 1};
}

prometheus::Counter* Predicted(Metrics& metrics, const char* set) {
  return &metrics.Counter("kvmesh_coordinator_predicted_hit_tokens_total",
                          "Prompt tokens that routes expect the chosen worker to find, by where", {{"set", set}});
}

prometheus::Counter* Actual(Metrics& metrics, const char* tier) {
  return &metrics.Counter("kvmesh_coordinator_actual_hit_tokens_total",
                          "Prompt tokens that completed placements found, by where", {{"tier", tier}});
}

prometheus::Counter* Routes(Metrics& metrics, const char* outcome) {
  return &metrics.Counter("kvmesh_coordinator_routes_total", "Routes by outcome", {{"outcome", outcome}});
}

prometheus::Gauge* Workers(Metrics& metrics, const char* state) {
  return &metrics.Gauge("kvmesh_coordinator_workers", "Workers by state", {{"state", state}});
}

uint64_t Value(const prometheus::Counter& counter) { return static_cast<uint64_t>(counter.Value()); }

}  // namespace

CoordinatorMetrics::CoordinatorMetrics(Metrics& metrics)
    : requested_tokens_(
          metrics.Counter("kvmesh_coordinator_requested_tokens_total", "Full-block prompt tokens of routed requests")),
      predicted_{Predicted(metrics, "device"), Predicted(metrics, "memory"), Predicted(metrics, "disk"),
                 Predicted(metrics, "peer")},
      actual_{Actual(metrics, "device"), Actual(metrics, "host"), Actual(metrics, "disk"), Actual(metrics, "peer")},
      outcomes_{Routes(metrics, "local"),   Routes(metrics, "peer"),        Routes(metrics, "cold"),
                Routes(metrics, "invalid"), Routes(metrics, "unavailable"), Routes(metrics, "failed"),
                Routes(metrics, "lookup")},
      completed_(metrics.Counter("kvmesh_coordinator_placements_completed_total", "Placements that ended",
                                 {{"result", "ok"}})),
      completed_failed_(metrics.Counter("kvmesh_coordinator_placements_completed_total", "Placements that ended",
                                        {{"result", "failed"}})),
      completed_predicted_(metrics.Counter("kvmesh_coordinator_completed_predicted_hit_tokens_total",
                                           "Predicted hit tokens of the placements that completed")),
      route_seconds_(
          metrics.Histogram("kvmesh_coordinator_route_seconds", "Time to answer a route", {}, RouteBuckets())),
      workers_{Workers(metrics, "warming"), Workers(metrics, "ready"), Workers(metrics, "draining"),
               Workers(metrics, "lost")},
      index_blocks_(metrics.Gauge("kvmesh_coordinator_index_blocks", "Distinct blocks in the index")),
      index_copies_(metrics.Gauge("kvmesh_coordinator_index_copies", "Blocks by worker and set in the index")),
      index_bytes_(metrics.Gauge("kvmesh_coordinator_index_bytes", "Accounted memory of the index")),
      shed_blocks_(metrics.Counter("kvmesh_coordinator_shed_blocks_total",
                                   "Reported blocks left out because the index is at its byte budget")),
      adopted_digests_(metrics.Counter("kvmesh_coordinator_adopted_digests_total",
                                       "Digests taken over unverified after a removal below shed coverage")),
      in_flight_(metrics.Gauge("kvmesh_coordinator_placements_in_flight", "Placements that have not ended")),
      expired_(metrics.Counter("kvmesh_coordinator_placements_expired_total", "Placements that nobody completed")),
      dropped_(metrics.Counter("kvmesh_coordinator_placements_dropped_total",
                               "Placements forgotten because the table was full")),
      heartbeats_missed_(metrics.Counter("kvmesh_coordinator_heartbeats_missed_total",
                                         "Intervals that passed without a worker's heartbeat")) {}

void CoordinatorMetrics::CountRoute(const absl::Status& status, uint64_t prompt_tokens, const RouteAnswer* answer,
                                    absl::Duration took) {
  route_seconds_.Observe(absl::ToDoubleSeconds(took));
  if (!status.ok()) {
    const Outcome outcome = absl::IsInvalidArgument(status) ? kInvalid
                            : absl::IsUnavailable(status)   ? kUnavailable
                                                            : kFailed;
    outcomes_[outcome]->Increment();
    return;
  }
  requested_tokens_.Increment(static_cast<double>(prompt_tokens));
  const Candidate& worker = answer->candidates[answer->placement.chosen];
  uint32_t reached = 0;
  for (const IndexSet set : kAllIndexSets) {  // each set counts what the better ones lack
    const uint32_t blocks = worker.blocks[IndexOf(set)];
    if (blocks <= reached) continue;
    predicted_[IndexOf(set)]->Increment(static_cast<double>(blocks - reached) * worker.block_tokens);
    reached = blocks;
  }
  const uint64_t pulled = answer->cost().pull_tokens;
  if (pulled > 0) predicted_[3]->Increment(static_cast<double>(pulled));
  outcomes_[pulled > 0 ? kPeer : reached > 0 ? kLocal : kCold]->Increment();
}

void CoordinatorMetrics::CountLookup(absl::Duration took) {
  route_seconds_.Observe(absl::ToDoubleSeconds(took));
  outcomes_[kLookup]->Increment();
}

void CoordinatorMetrics::CountCompletion(const InFlightPlacement& placement, const v1::HitTokens& hits, bool failed) {
  (failed ? completed_failed_ : completed_).Increment();
  completed_predicted_.Increment(static_cast<double>(placement.predicted_hit_tokens));
  const std::array<uint64_t, 4> tokens = {hits.device(), hits.host(), hits.disk(), hits.peer()};
  for (size_t i = 0; i < tokens.size(); ++i) actual_[i]->Increment(static_cast<double>(tokens[i]));
}

void CoordinatorMetrics::Collect(const WorkerRegistry& registry, const PrefixIndex& index, Placer& placer) {
  std::array<int, 4> states{};
  for (const auto& worker : registry.List()) ++states[static_cast<size_t>(worker->state())];
  for (size_t i = 0; i < states.size(); ++i) workers_[i]->Set(states[i]);
  const IndexStats stats = index.Stats();
  index_blocks_.Set(static_cast<double>(stats.blocks));
  index_copies_.Set(static_cast<double>(stats.copies));
  index_bytes_.Set(static_cast<double>(stats.bytes));
  RaiseTo(shed_blocks_, stats.shed_blocks);
  RaiseTo(adopted_digests_, stats.adopted_digests);
  const PlacerStats placements = placer.Stats();
  in_flight_.Set(static_cast<double>(placements.in_flight));
  RaiseTo(expired_, placements.expired);
  RaiseTo(dropped_, placements.dropped);
  RaiseTo(heartbeats_missed_, registry.heartbeats_missed());
}

uint64_t CoordinatorMetrics::routes() const {
  return Value(*outcomes_[kLocal]) + Value(*outcomes_[kPeer]) + Value(*outcomes_[kCold]);
}

uint64_t CoordinatorMetrics::predicted_hit_tokens() const {
  uint64_t sum = 0;
  for (const prometheus::Counter* counter : predicted_) sum += Value(*counter);
  return sum;
}

std::array<uint64_t, 4> CoordinatorMetrics::actual_hit_tokens() const {
  return {Value(*actual_[0]), Value(*actual_[1]), Value(*actual_[2]), Value(*actual_[3])};
}

}  // namespace kvmesh
