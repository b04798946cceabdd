#include "coordinator/placement/placer.h"

#include <algorithm>
#include <numeric>

namespace kvmesh {
namespace {

// Peers looked at as sources of one request: those with the longest matches.
constexpr size_t kMaxSources = 8;

// Moves the best `count` of `indices` to the front, in order, and drops the rest.
template <class Better>
void KeepBest(std::vector<size_t>& indices, size_t count, Better better) {
  count = std::min(count, indices.size());
  std::partial_sort(indices.begin(), indices.begin() + count, indices.end(), better);
  indices.resize(count);
}

}  // namespace

Placer::Placer(const PlacementOptions& options, const Clock& clock, RandomSource& random)
    : options_(options), clock_(clock), random_(random), table_(options) {}

void Placer::Consider(std::span<const Candidate> candidates) {
  std::vector<size_t>& sources = scratch_.sources;
  std::vector<size_t>& considered = scratch_.considered;
  const auto longer = [&](size_t a, size_t b) {
    if (candidates[a].local() != candidates[b].local()) return candidates[a].local() > candidates[b].local();
    return candidates[a].load() < candidates[b].load();
  };
  sources.clear();
  considered.clear();
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].local() > 0) sources.push_back(i);
    if (candidates[i].eligible) considered.push_back(i);
  }
  KeepBest(sources, kMaxSources, longer);
  if (considered.size() <= options_.max_candidates) return;

  // The best half by match or expectation, the other half by load.
  const size_t half = (options_.max_candidates + 1) / 2;
  std::partial_sort(considered.begin(), considered.begin() + half, considered.end(), [&](size_t a, size_t b) {
    const uint32_t expected_a = std::max(candidates[a].expected_blocks, candidates[a].local());
    const uint32_t expected_b = std::max(candidates[b].expected_blocks, candidates[b].local());
    return expected_a != expected_b ? expected_a > expected_b : longer(a, b);
  });
  std::partial_sort(considered.begin() + half, considered.begin() + options_.max_candidates, considered.end(),
                    [&](size_t a, size_t b) { return candidates[a].load() < candidates[b].load(); });
  considered.resize(options_.max_candidates);
}

absl::Status Placer::Place(const PlacementQuery& query, std::span<Candidate> candidates, Placement& out) {
  out.costs.clear();
  out.id = PlacementId{};
  if (!query.lookup_only) random_.Fill(out.id.bytes.data(), out.id.bytes.size());
  const absl::Time now = clock_.Now();
  const auto chain_blocks = static_cast<uint32_t>(query.keys.size());

  MutexLock lock(mu_);
  table_.Expire(now);
  uint32_t longest = 0;
  for (const Candidate& candidate : candidates) longest = std::max(longest, candidate.local());
  const std::optional<ExpectedPrefix> expected = table_.FindExpected(query.keys, longest);
  for (Candidate& candidate : candidates) {
    const WorkerLoad load = table_.Load(candidate.slot, now);
    candidate.queue_seconds = std::max(candidate.queue_seconds, load.backlog_seconds);
    candidate.recent_seconds = load.recent_seconds;
    candidate.expected_blocks = expected.has_value() && expected->worker == candidate.slot ? expected->blocks : 0;
  }
  Consider(candidates);
  if (scratch_.considered.empty()) return absl::UnavailableError("no live worker to place on");

  for (const size_t index : scratch_.considered) {
    out.costs.push_back(CostOf(options_, candidates, scratch_.sources, index, chain_blocks, query.prompt_tokens,
                               expected.has_value() ? expected->blocks : 0, scratch_.spans));
  }
  const size_t position = ChooseCost(options_, candidates, out.costs, turn_);
  std::swap(out.costs[0], out.costs[position]);
  std::sort(out.costs.begin() + 1, out.costs.end(),
            [](const CandidateCost& a, const CandidateCost& b) { return a.score < b.score; });
  const CandidateCost& cost = out.costs[0];
  out.chosen = cost.candidate;
  PlanPulls(options_, candidates, scratch_.sources, out.chosen, out.sources);

  if (query.lookup_only) return absl::OkStatus();

  ++turn_;
  const Candidate& worker = candidates[out.chosen];
  table_.Add(out.id,
             {.worker = worker.slot,
              .compute_seconds = cost.compute_seconds,
              .predicted_hit_tokens = cost.hit_tokens(),
              .placed = now,
              .expiry = now + absl::Seconds(cost.total_seconds) + options_.completion_grace},
             query.keys, static_cast<uint32_t>(cost.hit_tokens() / worker.block_tokens));
  return absl::OkStatus();
}

absl::StatusOr<InFlightPlacement> Placer::Complete(const PlacementId& id) {
  const absl::Time now = clock_.Now();
  MutexLock lock(mu_);
  table_.Expire(now);
  const std::optional<InFlightPlacement> placement = table_.Complete(id, now);
  if (!placement.has_value()) return absl::NotFoundError("placement_id: unknown or expired");
  return *placement;
}

void Placer::Forget(WorkerSlot worker) {
  MutexLock lock(mu_);
  table_.Forget(worker);
}

PlacerStats Placer::Stats() {
  const absl::Time now = clock_.Now();
  MutexLock lock(mu_);
  table_.Expire(now);
  return {.in_flight = table_.size(), .expired = table_.expired(), .dropped = table_.dropped()};
}

}  // namespace kvmesh
