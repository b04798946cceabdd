#include "coordinator/placement/cost_model.h"

#include <cmath>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

double Usable(double rate, double otherwise) { return std::isfinite(rate) && rate > 0 ? rate : otherwise; }

bool CanPull(const Candidate& from, const Candidate& to) {
  return from.layout == to.layout && from.block_tokens == to.block_tokens && from.block_bytes == to.block_bytes;
}

// One way to get blocks: a peer's memory or its disk.
struct Offer {
  size_t source;
  IndexSet set;
  uint32_t depth;
  double bytes_per_second;
};

// Nearer to the top of the list is taken first: faster, then deeper (fewer spans), then the less loaded peer.
bool BetterOffer(const Offer& a, const Offer& b, std::span<const Candidate> candidates) {
  if (a.bytes_per_second != b.bytes_per_second) return a.bytes_per_second > b.bytes_per_second;
  if (a.depth != b.depth) return a.depth > b.depth;
  return candidates[a.source].load() < candidates[b.source].load();
}

// Seconds to bring the receiver's own blocks to its device.
double LocalLoadSeconds(const Candidate& worker) {
  const uint32_t device = worker.blocks[IndexOf(IndexSet::kDevice)];
  const uint32_t memory = std::max(device, worker.blocks[IndexOf(IndexSet::kMemory)]);
  const uint32_t disk = std::max(memory, worker.blocks[IndexOf(IndexSet::kDisk)]);
  const auto bytes = static_cast<double>(worker.block_bytes);
  return (memory - device) * bytes / worker.rates.host_bytes_per_second +
         (disk - memory) * bytes / worker.rates.disk_bytes_per_second;
}

}  // namespace

absl::Status PlacementOptions::Validate() const {
  const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
  if (!positive(default_rates.prefill_tokens_per_second) || !positive(default_rates.host_bytes_per_second) ||
      !positive(default_rates.disk_bytes_per_second) || !positive(default_rates.peer_bytes_per_second)) {
    return absl::InvalidArgumentError("placement default_rates: must be positive");
  }
  if (pull_setup < absl::ZeroDuration()) return absl::InvalidArgumentError("placement pull_setup: negative");
  if (!(tie_fraction >= 0 && tie_fraction <= 1))
    return absl::InvalidArgumentError("placement tie_fraction: not 0 to 1");
  if (tie_floor < absl::ZeroDuration()) return absl::InvalidArgumentError("placement tie_floor: negative");
  if (recent_half_life <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("placement recent_half_life: must be positive");
  }
  if (completion_grace < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("placement completion_grace: negative");
  }
  if (max_in_flight == 0) return absl::InvalidArgumentError("placement max_in_flight: must be positive");
  if (max_candidates == 0) return absl::InvalidArgumentError("placement max_candidates: must be positive");
  return absl::OkStatus();
}

PlacementRates WithDefaults(const PlacementRates& rates, const PlacementRates& defaults) {
  return {.prefill_tokens_per_second = Usable(rates.prefill_tokens_per_second, defaults.prefill_tokens_per_second),
          .host_bytes_per_second = Usable(rates.host_bytes_per_second, defaults.host_bytes_per_second),
          .disk_bytes_per_second = Usable(rates.disk_bytes_per_second, defaults.disk_bytes_per_second),
          .peer_bytes_per_second = Usable(rates.peer_bytes_per_second, defaults.peer_bytes_per_second)};
}

double PlanPulls(const PlacementOptions& options, std::span<const Candidate> candidates,
                 std::span<const size_t> sources, size_t receiver, std::vector<PullSpan>& spans) {
  spans.clear();
  const Candidate& to = candidates[receiver];
  absl::InlinedVector<Offer, 16> offers;
  for (const size_t source : sources) {
    const Candidate& from = candidates[source];
    if (source == receiver || !CanPull(from, to) || from.local() <= to.local()) continue;
    const double link = std::min(from.rates.peer_bytes_per_second, to.rates.peer_bytes_per_second);
    const uint32_t device = from.blocks[IndexOf(IndexSet::kDevice)];
    const uint32_t memory = from.blocks[IndexOf(IndexSet::kMemory)];
    const uint32_t disk = from.blocks[IndexOf(IndexSet::kDisk)];
    offers.push_back(
        {source, device >= memory ? IndexSet::kDevice : IndexSet::kMemory, std::max(device, memory), link});
    offers.push_back({source, IndexSet::kDisk, disk, std::min(link, from.rates.disk_bytes_per_second)});
  }

  const double compute_seconds = to.block_tokens / to.rates.prefill_tokens_per_second;  // of one block
  double seconds = 0;
  double saved = 0;
  double best_gain = 0;
  double best_seconds = 0;
  size_t best_spans = 0;
  for (uint32_t position = to.local();;) {
    const Offer* best = nullptr;
    for (const Offer& offer : offers) {
      if (offer.depth > position && (best == nullptr || BetterOffer(offer, *best, candidates))) best = &offer;
    }
    if (best == nullptr) break;
    const uint32_t count = best->depth - position;
    spans.push_back({position, count, best->source, best->set});
    seconds += absl::ToDoubleSeconds(options.pull_setup) +
               count * static_cast<double>(to.block_bytes) / best->bytes_per_second;
    saved += count * compute_seconds;
    position = best->depth;
    if (saved - seconds > best_gain) {
      best_gain = saved - seconds;
      best_seconds = seconds;
      best_spans = spans.size();
    }
  }
  spans.resize(best_spans);
  return best_seconds;
}

CandidateCost CostOf(const PlacementOptions& options, std::span<const Candidate> candidates,
                     std::span<const size_t> sources, size_t index, uint32_t chain_blocks, uint64_t prompt_tokens,
                     uint32_t expected_anywhere, std::vector<PullSpan>& spans) {
  const Candidate& worker = candidates[index];
  const double pull_seconds = PlanPulls(options, candidates, sources, index, spans);
  const uint32_t local = worker.local();
  const uint32_t reach = spans.empty() ? local : spans.back().first_block + spans.back().block_count;
  const uint64_t block_tokens = worker.block_tokens;
  const uint64_t prompt = prompt_tokens > 0 ? prompt_tokens : chain_blocks * block_tokens;
  const double token_seconds = 1.0 / worker.rates.prefill_tokens_per_second;

  CandidateCost cost;
  cost.candidate = index;
  cost.local_tokens = local * block_tokens;
  cost.pull_tokens = (reach - local) * block_tokens;
  // The last token is computed even when all are cached.
  cost.compute_tokens = prompt > cost.hit_tokens() ? prompt - cost.hit_tokens() : 1;
  const uint32_t covered = std::max(reach, worker.expected_blocks);
  const uint64_t followed = std::min<uint64_t>((covered - reach) * block_tokens, cost.compute_tokens - 1);
  cost.compute_seconds = static_cast<double>(cost.compute_tokens - followed) * token_seconds;
  cost.load_seconds = LocalLoadSeconds(worker) + pull_seconds;
  cost.queue_seconds = worker.queue_seconds;
  cost.total_seconds = cost.compute_seconds + cost.load_seconds + cost.queue_seconds;
  const uint32_t twice = std::max(covered, expected_anywhere) - covered;
  cost.score = cost.total_seconds + static_cast<double>(twice * block_tokens) * token_seconds;
  return cost;
}

size_t ChooseCost(const PlacementOptions& options, std::span<const Candidate> candidates,
                  std::span<const CandidateCost> costs, uint64_t turn) {
  double best = costs[0].score;
  for (const CandidateCost& cost : costs) best = std::min(best, cost.score);
  const double limit = best * (1 + options.tie_fraction) + absl::ToDoubleSeconds(options.tie_floor);

  const auto follows = [&](const CandidateCost& cost) {
    const Candidate& worker = candidates[cost.candidate];
    return worker.expected_blocks * static_cast<uint64_t>(worker.block_tokens) > cost.hit_tokens();
  };
  const auto load = [&](const CandidateCost& cost) { return candidates[cost.candidate].load(); };
  absl::InlinedVector<size_t, 64> tied;
  for (size_t i = 0; i < costs.size(); ++i) {
    if (costs[i].score > limit) continue;
    if (!tied.empty()) {
      const CandidateCost& leader = costs[tied[0]];
      const bool followed = follows(costs[i]);
      if (followed != follows(leader)) {
        if (!followed) continue;
        tied.clear();
      } else if (load(costs[i]) != load(leader)) {
        if (load(costs[i]) > load(leader)) continue;
        tied.clear();
      }
    }
    tied.push_back(i);
  }
  return tied[turn % tied.size()];
}

}  // namespace kvmesh
