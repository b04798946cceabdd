// A Llama model on the CPU: loads a Hugging Face folder and computes logits over a paged pool.
#ifndef KVMESH_WORKER_MODEL_LLAMA_MODEL_H_
#define KVMESH_WORKER_MODEL_LLAMA_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/kv_pool_view.h"
#include "kernels/rope.h"
#include "kvstore/base/status.h"
#include "worker/model/forward_batch.h"
#include "worker/model/llama_config.h"
#include "worker/model/llama_weights.h"
#include "worker/model/parallel_for.h"
#include "worker/model/row_kernels.h"

namespace kvmesh {

inline constexpr int32_t kMaxModelThreads = 256;

struct ModelOptions {
  int32_t threads = 1;                  // 1 to kMaxModelThreads; the caller of Forward is one of them
  const RowKernels* kernels = nullptr;  // null: the fastest that the CPU runs
};

// Immutable once loaded; thread safe. Forward passes that run at once share the model's threads.
//
// Row-invariant: the logits of a position, and the K/V bytes that it leaves in the pool, are bit-identical whatever the
// cut of a prompt into passes, the other sequences of a pass, the number of threads, the block size of the pool, and
// the position that a sequence was resumed at. They depend on the tokens up to it, the pool's format, the row kernels
// (fused or not) and the kernels' variant. Computes in fp32; attention reads what the pool holds, in the pool's format.
class LlamaModel {
 public:
  // Reads config.json and model.safetensors in `dir`.
  // NOT_FOUND: one of them is missing. INVALID_ARGUMENT: malformed or not supported, or an option out of range; names
  // file and field or tensor, or the option. UNAVAILABLE: can't be read.
  static absl::StatusOr<std::unique_ptr<LlamaModel>> Load(const std::string& dir, const ModelOptions& options = {});

  LlamaModel(const LlamaModel&) = delete;
  LlamaModel& operator=(const LlamaModel&) = delete;

  const LlamaConfig& config() const { return config_; }

  // For CacheIdentity.model_revision: hex SHA-256 of the u64 LE length of config.json, config.json, and
  // model.safetensors, as they were read.
  const std::string& revision() const { return revision_; }

  const RowKernels& row_kernels() const { return *kernels_; }

  // Writes the K/V of every token whose slot is not -1, layer by layer, and returns the wanted logits. All K/V of a
  // layer are written before any token attends in it, so sequences of one batch may read each other's new tokens.
  // `pools`, one for each layer group, are written; concurrent passes must not write slots that others read or write.
  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED: see CheckForwardBatch; nothing was written.
  absl::StatusOr<Logits> Forward(std::span<const ForwardSequence> batch, std::span<const KvPoolView> pools) const;

 private:
  LlamaModel(LlamaConfig config, LlamaWeights weights, std::string revision, const RowKernels& kernels,
             int32_t threads);

  const LlamaConfig config_;
  const LlamaWeights weights_;
  const std::string revision_;
  const RowKernels* const kernels_;
  const RopeTable rope_;
  const std::unique_ptr<ParallelRunner> runner_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_MODEL_LLAMA_MODEL_H_
