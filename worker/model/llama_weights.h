// The weights of a Llama model, checked against its config and repacked for the row kernels.
#ifndef KVMESH_WORKER_MODEL_LLAMA_WEIGHTS_H_
#define KVMESH_WORKER_MODEL_LLAMA_WEIGHTS_H_

#include <vector>

#include "kvstore/base/status.h"
#include "worker/model/llama_config.h"
#include "worker/model/row_kernels.h"
#include "worker/model/safetensors.h"

namespace kvmesh {

struct LlamaLayerWeights {
  std::vector<float> attention_norm;  // [hidden]
  PackedMatrix query;                 // [heads * head_dim, hidden]
  PackedMatrix key;                   // [kv_heads * head_dim, hidden]
  PackedMatrix value;                 // [kv_heads * head_dim, hidden]
  PackedMatrix output;                // [hidden, heads * head_dim]
  std::vector<float> sinks;           // [heads], empty without attention_sinks
  std::vector<float> mlp_norm;        // [hidden]
  PackedMatrix gate;                  // [intermediate, hidden]
  PackedMatrix up;                    // [intermediate, hidden]
  PackedMatrix down;                  // [hidden, intermediate]
};

// All in fp32, whatever the file holds.
struct LlamaWeights {
  std::vector<float> embedding;  // [vocab, hidden], by token
  std::vector<LlamaLayerWeights> layers;
  std::vector<float> final_norm;  // [hidden]
  PackedMatrix logits;            // [vocab, hidden]; the embedding where it is tied
};

// Reads the tensors by their Hugging Face names; others in the file are ignored.
// INVALID_ARGUMENT naming file and tensor: absent, or of a shape that disagrees with `config`.
absl::StatusOr<LlamaWeights> LoadLlamaWeights(const SafetensorsFile& file, const LlamaConfig& config,
                                              const RowKernels& kernels);

}  // namespace kvmesh

#endif  // KVMESH_WORKER_MODEL_LLAMA_WEIGHTS_H_
