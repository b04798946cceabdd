// What a request would cost on each worker: seconds to pull, to load, to compute and to wait. Pure functions.
#ifndef KVMESH_COORDINATOR_PLACEMENT_COST_MODEL_H_
#define KVMESH_COORDINATOR_PLACEMENT_COST_MODEL_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/prefix_index/prefix_index.h"
#include "kvstore/base/status.h"

namespace kvmesh {

// Of one worker, measured or configured. Zero: unknown, the default counts.
struct PlacementRates {
  double prefill_tokens_per_second = 0;
  double host_bytes_per_second = 0;
  double disk_bytes_per_second = 0;
  double peer_bytes_per_second = 0;
};

struct PlacementOptions {
  PlacementRates default_rates = {.prefill_tokens_per_second = 8000,
                                  .host_bytes_per_second = 20e9,
                                  .disk_bytes_per_second = 2e9,
                                  .peer_bytes_per_second = 2e9};
  // Fixed cost of each span pulled.
  absl::Duration pull_setup = absl::Milliseconds(1);
  // Scores within best * (1 + fraction) + floor are a tie, which the least load breaks. The floor is below
  // `pull_setup`, so that a copy at hand wins over one that is quick to pull.
  double tie_fraction = 0.05;
  absl::Duration tie_floor = absl::Microseconds(500);
  // Work given to a worker counts as load in ties with this half-life, whether it has ended or not: new sessions
  // spread.
  absl::Duration recent_half_life = absl::Minutes(1);
  // A placement that nobody completes is forgotten this long after its predicted end.
  absl::Duration completion_grace = absl::Seconds(30);
  size_t max_in_flight = 65536;
  // Candidates looked at: those with the longest match, and as many with the least load.
  size_t max_candidates = 64;

  // INVALID_ARGUMENT naming the field.
  absl::Status Validate() const;
};

// One live worker as a request sees it.
struct Candidate {
  WorkerSlot slot;
  PlacementRates rates;       // no zeros: see WithDefaults
  uint32_t block_tokens = 0;  // > 0
  uint64_t block_bytes = 0;
  uint64_t layout = 0;                        // workers exchange blocks only when equal
  bool eligible = true;                       // false: a source only
  std::array<uint32_t, kIndexSets> blocks{};  // matched, by IndexSet
  double queue_seconds = 0;                   // before the request would start
  double recent_seconds = 0;                  // work given lately, for ties
  uint32_t expected_blocks = 0;               // of this chain, that placements in flight there will have computed

  uint32_t local() const { return std::max({blocks[0], blocks[1], blocks[2]}); }
  double load() const { return queue_seconds + recent_seconds; }
};

// A span that the receiver should pull.
struct PullSpan {
  uint32_t first_block = 0;
  uint32_t block_count = 0;
  size_t source = 0;  // index of the candidate
  IndexSet set = IndexSet::kMemory;
};

struct CandidateCost {
  size_t candidate = 0;  // index
  uint64_t local_tokens = 0;
  uint64_t pull_tokens = 0;
  uint64_t compute_tokens = 0;
  double compute_seconds = 0;  // without what a placement in flight there computes anyway
  double load_seconds = 0;     // from its own host and disk, and from peers
  double queue_seconds = 0;
  double total_seconds = 0;
  // Total, and what the cluster would compute twice by not following a placement in flight elsewhere.
  double score = 0;

  uint64_t hit_tokens() const { return local_tokens + pull_tokens; }
};

// `rates` with zeros and nonsense (negative, not finite) replaced by the defaults.
PlacementRates WithDefaults(const PlacementRates& rates, const PlacementRates& defaults);

// What `receiver` should pull beyond its own copy, in chain order: from the fastest of `sources` (indices; the receiver
// and workers of another layout are passed over), as far as pulling beats computing. Overwrites `spans`. Returns the
// seconds it takes.
double PlanPulls(const PlacementOptions& options, std::span<const Candidate> candidates,
                 std::span<const size_t> sources, size_t receiver, std::vector<PullSpan>& spans);

// Cost of a prompt of `prompt_tokens` (0: exactly `chain_blocks` full blocks) on candidate `index`.
// `expected_anywhere`: blocks of the chain that placements in flight will have computed on some worker.
CandidateCost CostOf(const PlacementOptions& options, std::span<const Candidate> candidates,
                     std::span<const size_t> sources, size_t index, uint32_t chain_blocks, uint64_t prompt_tokens,
                     uint32_t expected_anywhere, std::vector<PullSpan>& spans);

// Position in `costs` of the one to take: the lowest score; among ties one that follows a placement in flight, then the
// least loaded, then by turns (`turn` counts the calls). REQUIRES: `costs` not empty.
size_t ChooseCost(const PlacementOptions& options, std::span<const Candidate> candidates,
                  std::span<const CandidateCost> costs, uint64_t turn);

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_PLACEMENT_COST_MODEL_H_
