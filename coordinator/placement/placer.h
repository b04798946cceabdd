// Where should this request run? Costs of the candidates, a choice, and the memory of it.
#ifndef KVMESH_COORDINATOR_PLACEMENT_PLACER_H_
#define KVMESH_COORDINATOR_PLACEMENT_PLACER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/placement/cost_model.h"
#include "coordinator/placement/placement_table.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/random.h"
#include "kvstore/base/status.h"

namespace kvmesh {

struct PlacementQuery {
  std::span<const BlockKey> keys;  // full blocks of the prompt
  uint64_t prompt_tokens = 0;      // 0: the full blocks alone
  bool lookup_only = false;        // choose, and remember nothing
};

struct Placement {
  PlacementId id;     // zeros when nothing is remembered
  size_t chosen = 0;  // index of the candidate
  std::vector<PullSpan> sources;
  std::vector<CandidateCost> costs;  // chosen first, then by score
};

struct PlacerStats {
  uint64_t in_flight = 0;
  uint64_t expired = 0;
  uint64_t dropped = 0;
};

// Thread safe.
class Placer {
 public:
  // `clock` and `random` must outlive it. REQUIRES: options.Validate().ok().
  Placer(const PlacementOptions& options, const Clock& clock, RandomSource& random);

  // Chooses among the eligible candidates and remembers the placement, unless it is a lookup. Fills the candidates'
  // queue (the longer of what stands there and what placements in flight predict), recent work and expected blocks;
  // overwrites `out`. UNAVAILABLE: none is eligible.
  absl::Status Place(const PlacementQuery& query, std::span<Candidate> candidates, Placement& out);

  // NOT_FOUND: unknown, expired or completed before.
  absl::StatusOr<InFlightPlacement> Complete(const PlacementId& id);
  void Forget(WorkerSlot worker);
  PlacerStats Stats();

  const PlacementOptions& options() const { return options_; }

 private:
  // Reused by the calls of all threads, under mu_.
  struct Scratch {
    std::vector<size_t> sources;
    std::vector<size_t> considered;
    std::vector<PullSpan> spans;
  };

  void Consider(std::span<const Candidate> candidates) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const PlacementOptions options_;
  const Clock& clock_;
  RandomSource& random_;

  Mutex mu_;
  PlacementTable table_ ABSL_GUARDED_BY(mu_);
  Scratch scratch_ ABSL_GUARDED_BY(mu_);
  uint64_t turn_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_PLACEMENT_PLACER_H_
