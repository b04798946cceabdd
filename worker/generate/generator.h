// Generation over a block store: resumes the prompt's prefix, computes the rest in chunks, then decodes.
#ifndef KVMESH_WORKER_GENERATE_GENERATOR_H_
#define KVMESH_WORKER_GENERATE_GENERATOR_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/mutex.h"
#include "kvstore/block/cache_identity.h"
#include "kvstore/tiers/block_store.h"
#include "worker/engine/resumer.h"
#include "worker/engine/sequence.h"
#include "worker/generate/decoder.h"
#include "worker/generate/generate_job.h"
#include "worker/model/llama_model.h"

namespace kvmesh {

// The identity of what `model` computes into a pool of `layout`: model and revision, rotation, block size, and numerics
// that name compute type, pool format, and the kernels in use, since those decide bits.
CacheIdentity ModelIdentity(const LlamaModel& model, const BlockLayout& layout);

// Thread safe; runs share the model's threads.
class Generator {
 public:
  struct Options {
    uint32_t prefill_chunk = 256;  // tokens per forward pass of a prompt
    uint32_t max_runs = 64;        // at once
    absl::Duration sibling_wait = absl::Seconds(10);
  };
  // None is owned. `groups`: as the model's.
  Generator(const LlamaModel& model, std::vector<CacheGroup> groups, Resumer& resumer, const Clock& clock,
            const Options& options);

  // INVALID_ARGUMENT: as CheckGenerateJob. RESOURCE_EXHAUSTED: too many runs, or no room in the pool.
  // DEADLINE_EXCEEDED, CANCELLED. A sample stops at an end-of-sequence id, which is not reported.
  absl::Status Run(const GenerateJob& job, const GenerateEvents& events);

  // Positions of the model.
  uint64_t max_positions() const { return static_cast<uint64_t>(model_.config().max_positions); }

  // For heartbeats.
  uint64_t queued_tokens() const { return queued_tokens_.load(std::memory_order_relaxed); }
  uint32_t runs() const { return runs_.load(std::memory_order_relaxed); }
  // Moving average of measured prefill; 0 before the first.
  double prefill_tokens_per_second() const;

 private:
  absl::Status RunAdmitted(const GenerateJob& job, const GenerateEvents& events);
  // Computes [from, end) and returns the logits of the last position.
  absl::StatusOr<Logits> Prefill(Sequence& sequence, uint64_t from, const GenerateJob& job,
                                 const GenerateEvents& events);
  // As StepFunction.
  absl::StatusOr<Logits> Step(std::span<const StepPart> parts, const GenerateJob& job);
  void NotePrefill(uint64_t tokens, absl::Duration took);

  const LlamaModel& model_;
  const std::vector<CacheGroup> groups_;
  std::vector<KvPoolView> pools_;  // by group
  Resumer& resumer_;
  const Clock& clock_;
  const Options options_;
  std::atomic<uint64_t> queued_tokens_{0};
  std::atomic<uint32_t> runs_{0};
  mutable Mutex mu_;
  double prefill_rate_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_GENERATE_GENERATOR_H_
