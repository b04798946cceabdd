// How well a model predicts a text from K/V in a stored format, beside the same from fp32.
#ifndef KVMESH_CLIENT_CLI_EVAL_H_
#define KVMESH_CLIENT_CLI_EVAL_H_

#include <cstdint>
#include <functional>
#include <span>

#include "kernels/layout.h"
#include "kvstore/base/status.h"
#include "worker/model/llama_model.h"

namespace kvmesh {

struct EvalOptions {
  KvFormat format = KvFormat::kF32;
  StreamingPolicy policy;  // of both runs
  // The text is cut into windows of this many tokens, each from position 0 with nothing before it. 0: the model's
  // positions or, with a policy, the whole text.
  int64_t window_tokens = 0;
  int32_t block_tokens = 16;
  // Tokens of a forward pass, which bounds memory: the logits of a pass are held at a time, for both formats. Fewer are
  // taken where kMaxForwardLogits demands it. No figure depends on it.
  int64_t pass_tokens = 256;
  std::function<void(size_t done, size_t all)> progress;  // optional; tokens
};

struct EvalResult {
  uint64_t tokens = 0;     // of the text
  uint64_t predicted = 0;  // of those, all but the first of each window
  // Nats per predicted token, given the tokens before it in its window.
  double mean_nll = 0;
  double mean_nll_fp32 = 0;
  // The largest difference of any logit between both runs.
  double max_abs_logit_diff = 0;
};

// -log softmax(logits)[token], in double. REQUIRES: token < logits.size().
double NegativeLogLikelihood(std::span<const float> logits, uint32_t token);

// INVALID_ARGUMENT naming the flag: fewer than 2 tokens, an id outside the vocabulary, a window of fewer than 2 tokens
// or of more than there are positions, a policy that the model can't have, no format. RESOURCE_EXHAUSTED: no memory.
// INTERNAL: a logit is not finite.
absl::StatusOr<EvalResult> Evaluate(const LlamaModel& model, std::span<const uint32_t> tokens,
                                    const EvalOptions& options);

}  // namespace kvmesh

#endif  // KVMESH_CLIENT_CLI_EVAL_H_
