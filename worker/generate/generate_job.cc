#include "worker/generate/generate_job.h"

#include "absl/strings/str_cat.h"
#include "worker/model/forward_batch.h"

namespace kvmesh {

absl::Status CheckGenerateJob(const GenerateJob& job, const LlamaConfig& config) {
  if (job.prompt.empty()) return absl::InvalidArgumentError("tokens: empty, at least 1 is needed");
  if (job.max_tokens == 0 || job.max_tokens > kMaxGenerateTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens: ", job.max_tokens, ", must be 1 to ", kMaxGenerateTokens));
  }
  if (job.samples == 0 || job.samples > kMaxSamples) {
    return absl::InvalidArgumentError(absl::StrCat("samples: ", job.samples, ", must be 1 to ", kMaxSamples));
  }
  if (job.speculate > kMaxSpeculate) {
    return absl::InvalidArgumentError(absl::StrCat("speculate: ", job.speculate, ", must be 0 to ", kMaxSpeculate));
  }
  KVMESH_RETURN_IF_ERROR(CheckSampling(job.sampling));
  const absl::Status policy = CheckStreamingPolicy(job.policy, config);
  if (!policy.ok()) return absl::InvalidArgumentError(absl::StrCat("attention_", policy.message()));
  const uint64_t positions = static_cast<uint64_t>(job.policy.streams() ? kMaxPositions : config.max_positions);
  if (job.prompt.size() + job.max_tokens > positions) {
    return absl::InvalidArgumentError(absl::StrCat("tokens: ", job.prompt.size(), " of prompt and max_tokens ",
                                                   job.max_tokens, " exceed the model's ", positions, " positions"));
  }
  for (const uint32_t token : job.prompt) {
    if (token >= static_cast<uint32_t>(config.vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens: id ", token, " is outside the vocabulary of ", config.vocab_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvmesh
