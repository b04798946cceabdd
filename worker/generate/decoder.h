// Decoding after a prompt: its samples token by token, one forward pass per step for all of them, drafts verified.
#ifndef KVMESH_WORKER_GENERATE_DECODER_H_
#define KVMESH_WORKER_GENERATE_DECODER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kvstore/base/clock.h"
#include "kvstore/base/status.h"
#include "worker/engine/sequence.h"
#include "worker/generate/generate_job.h"
#include "worker/model/forward_batch.h"

namespace kvmesh {

// Tokens [from, from + count) of a sequence in one pass.
struct StepPart {
  Sequence* sequence = nullptr;
  uint64_t from = 0;
  uint64_t count = 0;
  LogitsWanted logits = LogitsWanted::kLast;
};

// Computes the parts, whose sequences differ, in one pass, and marks them written. RESOURCE_EXHAUSTED: no room in the
// pool.
using StepFunction = std::function<absl::StatusOr<Logits>(std::span<const StepPart>)>;

// Used once, by one thread.
//
// A sample is a fork of the prompt. Each step takes the token that it reported last, and up to `speculate` drafts
// behind it, through the model; it then reports what SampleToken chooses at each of these positions as long as the
// draft there is that choice, and drops the drafts that are not. So the tokens reported, the K/V computed for them and
// the blocks sealed are those of a run without drafts; what is reported last has no K/V.
class Decoder {
 public:
  // None is owned. A sample ends before a token of `stops`, or after max_tokens.
  Decoder(const GenerateJob& job, std::span<const uint32_t> stops, const GenerateEvents& events, const Clock& clock,
          StepFunction step);

  // REQUIRES: all of `prompt` is ready; `logits` are those of its last position. CANCELLED, DEADLINE_EXCEEDED,
  // RESOURCE_EXHAUSTED: no room for the samples; drafts are given up before that.
  absl::Status Run(std::unique_ptr<Sequence> prompt, std::span<const float> logits);

 private:
  struct Sample {
    uint32_t index = 0;
    std::unique_ptr<Sequence> sequence;
    uint32_t left = 0;  // tokens to report; 0: the sample has ended
    uint32_t next = 0;  // reported, not of the sequence yet
  };

  // Reports the choice for `position` of the sample, or ends it.
  absl::Status Choose(std::span<const float> logits, uint64_t position, Sample& sample);
  // Adds each sample's next token and drafts to its sequence.
  absl::StatusOr<std::vector<StepPart>> Extend();
  absl::StatusOr<Logits> StepOrDropDrafts(std::vector<StepPart>& parts);
  // `first_row`: of the part's logits.
  absl::Status Verify(const StepPart& part, const Logits& logits, int64_t first_row, Sample& sample);

  const GenerateJob& job_;
  const std::span<const uint32_t> stops_;
  const GenerateEvents& events_;
  const Clock& clock_;
  const StepFunction step_;
  std::vector<Sample> samples_;  // those that have not ended
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_GENERATE_DECODER_H_
