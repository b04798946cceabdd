#include "worker/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/model/greedy.h"

namespace kvmesh {
namespace {

struct Candidate {
  uint32_t id;
  float logit;
  double weight;
};

bool Likelier(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }
bool ByLowerId(const Candidate& a, const Candidate& b) { return a.id < b.id; }

double TotalWeight(std::span<const Candidate> candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

// The finalizer of SplitMix64: each bit of the argument changes each bit of the result half of the time.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Leaves the fewest of the likeliest that have `top_p` of the weight, by id.
void KeepTopP(double top_p, std::vector<Candidate>& candidates) {
  const double wanted = top_p * TotalWeight(candidates);
  const auto less_likely = [](const Candidate& a, const Candidate& b) { return Likelier(b, a); };
  std::make_heap(candidates.begin(), candidates.end(), less_likely);
  auto kept = candidates.end();  // [kept, end) has left the heap
  double weight = 0;
  while (kept != candidates.begin() && (kept == candidates.end() || weight < wanted)) {
    std::pop_heap(candidates.begin(), kept, less_likely);
    --kept;
    weight += kept->weight;
  }
  candidates.erase(candidates.begin(), kept);
  std::sort(candidates.begin(), candidates.end(), ByLowerId);
}

}  // namespace

absl::Status CheckSampling(const SamplingParams& params) {
  if (!(params.temperature >= 0 && params.temperature <= kMaxTemperature)) {
    return absl::InvalidArgumentError(
        absl::StrCat("temperature: ", params.temperature, ", must be 0 to ", kMaxTemperature));
  }
  if (!(params.top_p >= 0 && params.top_p <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("top_p: ", params.top_p, ", must be 0 to 1"));
  }
  return absl::OkStatus();
}

double UniformAt(uint64_t seed, uint32_t sample, uint64_t position) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15;  // of SplitMix64
  uint64_t state = Mix(seed + kStep);
  state = Mix(state + kStep * (uint64_t{sample} + 1));
  state = Mix(state + kStep * (position + 1));
  return static_cast<double>(state >> 11) * 0x1p-53;
}

uint32_t SampleToken(std::span<const float> logits, const SamplingParams& params, uint32_t sample, uint64_t position) {
  const uint32_t greedy = GreedyToken(logits);
  const float top = logits[greedy];
  if (params.temperature == 0 || !std::isfinite(top)) return greedy;
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) candidates.push_back({static_cast<uint32_t>(i), logits[i], 0});
  }
  if (params.top_k > 0 && params.top_k < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + params.top_k, candidates.end(), Likelier);
    candidates.resize(params.top_k);
    std::sort(candidates.begin(), candidates.end(), ByLowerId);
  }
  for (Candidate& candidate : candidates) {
    candidate.weight = std::exp((double{candidate.logit} - double{top}) / params.temperature);
  }
  if (params.top_p > 0 && params.top_p < 1) KeepTopP(params.top_p, candidates);
  const double drawn = UniformAt(params.seed, sample, position) * TotalWeight(candidates);
  double sum = 0;
  uint32_t chosen = greedy;
  for (const Candidate& candidate : candidates) {
    if (candidate.weight == 0) continue;
    chosen = candidate.id;
    sum += candidate.weight;
    if (sum > drawn) break;
  }
  return chosen;
}

}  // namespace kvmesh
