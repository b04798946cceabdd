// What a generation is asked for, and what it tells.
#ifndef KVMESH_WORKER_GENERATE_GENERATE_JOB_H_
#define KVMESH_WORKER_GENERATE_GENERATE_JOB_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "kernels/streaming_policy.h"
#include "kvstore/base/status.h"
#include "kvstore/block/secrets.h"
#include "worker/engine/resumer.h"
#include "worker/generate/sampling.h"
#include "worker/model/llama_config.h"

namespace kvmesh {

inline constexpr uint32_t kMaxGenerateTokens = 65536;
// These two bound the logits of one pass.
inline constexpr uint32_t kMaxSamples = 32;
inline constexpr uint32_t kMaxSpeculate = 16;

struct GenerateJob {
  RootKey root;
  StreamingPolicy policy;  // as the identity of `root` has it
  std::vector<uint32_t> prompt;
  uint32_t max_tokens = 0;  // of each sample
  uint32_t samples = 1;
  SamplingParams sampling;
  uint32_t speculate = 0;  // drafts that a pass verifies for each sample; without influence on what is generated
  std::vector<PeerSource> sources;
  LossyFormats accepted;  // in the prefix that it resumes
  bool no_cache = false;
  absl::Time deadline;
};

// INVALID_ARGUMENT names the field: an empty prompt, an id outside the vocabulary, a length beyond the model's
// positions, max_tokens outside 1 to kMaxGenerateTokens, samples outside 1 to kMaxSamples, speculate above
// kMaxSpeculate, sampling as CheckSampling, a policy that the model can't have (attention_policy).
absl::Status CheckGenerateJob(const GenerateJob& job, const LlamaConfig& config);

struct GenerateStart {
  uint64_t computed_tokens = 0;  // last-token rule applied
  HitTokensBySource hits{};
};

// What a run tells its caller. False ends it with CANCELLED.
struct GenerateEvents {
  std::function<bool(const GenerateStart&)> on_start;
  // The next token of a sample, numbered from 0; the samples of one pass come in order.
  std::function<bool(uint32_t sample, uint32_t token)> on_token;
  std::function<bool()> cancelled;  // optional; asked between passes
  // Optional: drafts that a pass has verified, and those of them that were right.
  std::function<void(uint64_t proposed, uint64_t accepted)> on_drafts;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_GENERATE_GENERATE_JOB_H_
