// What the model runner knows of a Llama model, from the config.json of a Hugging Face folder.
#ifndef KVMESH_WORKER_MODEL_LLAMA_CONFIG_H_
#define KVMESH_WORKER_MODEL_LLAMA_CONFIG_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/layout.h"
#include "kvstore/base/status.h"
#include "worker/model/model_shape.h"

namespace kvmesh {

// Limits of a usable config, besides those of model_shape.h.
inline constexpr int64_t kMaxIntermediateSize = 131072;
inline constexpr size_t kMaxEosIds = 16;

struct LlamaConfig {
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t layers = 0;
  int32_t heads = 0;     // query heads; a multiple of kv_heads
  int32_t kv_heads = 0;  // heads when config.json has no num_key_value_heads
  int32_t head_dim = 0;  // hidden_size / heads when config.json has none
  int32_t vocab_size = 0;
  int64_t max_positions = 0;
  float rms_norm_eps = 0;
  double rope_theta = 0;
  bool tie_word_embeddings = false;
  bool attention_sinks = false;    // a learned logit per head in each layer's softmax (gpt-oss)
  std::vector<LayerGroup> groups;  // those with layers: full attention first, then the window's; at least one
  std::optional<uint32_t> bos_id;
  std::vector<uint32_t> eos_ids;  // may be empty

  int64_t query_width() const { return int64_t{heads} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }

  // Layout of the pool that a group's layers read and write. REQUIRES: block_tokens > 0, format specified, the group
  // exists.
  BlockLayout CacheLayout(KvFormat format, int32_t block_tokens, size_t group = 0) const {
    return CanonicalLayout(format, static_cast<int32_t>(groups[group].layers.size()), kv_heads, block_tokens, head_dim);
  }

  friend bool operator==(const LlamaConfig&, const LlamaConfig&) = default;
};

// Takes LlamaForCausalLM and MistralForCausalLM; which layers attend to a window as ReadModelShape has it, and
// `attention_sinks` (bool) for a learned sink per head, tensors model.layers.N.self_attn.sinks.
// INVALID_ARGUMENT naming the field: not JSON, duplicate names, a field that is absent, of a wrong type or out of
// range, or one that asks for what is not supported (another architecture or activation, rope scaling, attention or MLP
// bias, latent attention, quantized weights). Fields that don't change the computation are ignored.
absl::StatusOr<LlamaConfig> ParseLlamaConfig(absl::string_view json);

}  // namespace kvmesh

#endif  // KVMESH_WORKER_MODEL_LLAMA_CONFIG_H_
