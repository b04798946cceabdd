// Choosing a token from logits: greedily, or at random by temperature, top-k and top-p.
#ifndef KVMESH_WORKER_GENERATE_SAMPLING_H_
#define KVMESH_WORKER_GENERATE_SAMPLING_H_

#include <cstdint>
#include <span>

#include "kvstore/base/status.h"

namespace kvmesh {

inline constexpr double kMaxTemperature = 100;

struct SamplingParams {
  double temperature = 0;  // 0: greedy, and what follows has no influence
  uint32_t top_k = 0;      // only the k largest logits; 0: all
  double top_p = 0;        // of those, the fewest largest whose probabilities sum to this; 0 and 1: all
  uint64_t seed = 0;
};

// INVALID_ARGUMENT naming temperature or top_p: not a number, temperature outside 0 to kMaxTemperature, top_p outside 0
// to 1.
absl::Status CheckSampling(const SamplingParams& params);

// A number in [0, 1), uniform over seeds, samples and positions alike, and a function of them alone.
double UniformAt(uint64_t seed, uint32_t sample, uint64_t position);

// The token of sample `sample` at `position` of its sequence, a function of the arguments alone: what else runs, and
// how many samples are taken, has no influence. Probabilities are softmax(logits / temperature) in double precision
// over the tokens that top_k and then top_p leave, of equal logits the lower ids first; the smallest id is chosen at
// which their sum from id 0 on exceeds UniformAt of the whole. A NaN is never chosen, unless all are (then 0); beside
// an infinite logit nothing else is. REQUIRES: logits is not empty, CheckSampling(params).ok().
uint32_t SampleToken(std::span<const float> logits, const SamplingParams& params, uint32_t sample, uint64_t position);

}  // namespace kvmesh

#endif  // KVMESH_WORKER_GENERATE_SAMPLING_H_
