// What a model's attention state looks like, from its config.json alone: the dimensions of a token's rows, and which
// layers attend to everything and which to a window. Wider than what the model runner can run.
#ifndef KVMESH_WORKER_MODEL_MODEL_SHAPE_H_
#define KVMESH_WORKER_MODEL_MODEL_SHAPE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/layout.h"
#include "kvstore/base/status.h"
#include "worker/model/config_fields.h"

namespace kvmesh {

// Limits of a usable config. head_dim and the two parts of an MLA row are multiples of 8 too (what attention kernels
// take).
inline constexpr int64_t kMaxHiddenSize = 32768;
inline constexpr int64_t kMaxLayers = 512;
inline constexpr int64_t kMaxAttentionHeads = 512;
inline constexpr int64_t kMaxModelHeadDim = 256;
inline constexpr int64_t kMaxLatentDim = 4096;
inline constexpr int64_t kMaxVocabSize = 1 << 20;
inline constexpr int64_t kMaxPositions = 1 << 21;  // of windows as well

// Layers with one attention span; they share blocks (DESIGN section 5).
struct LayerGroup {
  int32_t window = 0;           // keys that a position sees, its own included; 0: all up to its own
  std::vector<int32_t> layers;  // ascending

  friend bool operator==(const LayerGroup&, const LayerGroup&) = default;
};

struct ModelShape {
  std::string model_type;  // as the config names it; may be empty
  int32_t layers = 0;
  int32_t hidden_size = 0;          // 0: the config has none and needs none
  int32_t heads = 0;                // query heads; a multiple of kv_heads
  int32_t kv_heads = 0;             // 1 with MLA
  int32_t head_dim = 0;             // elements of a row: of K or V of one head, or latent and RoPE key with MLA
  int32_t latent_dim = 0;           // MLA: the first elements of a row; else 0
  int32_t vocab_size = 0;           // 0: the config has none
  int64_t max_positions = 0;        // 0: the config has none
  KvFormat dtype = KvFormat::kF32;  // of the model's activations; fp32 when the config has none
  std::vector<LayerGroup> groups;   // [0]: full attention, may be empty; then windows. Each layer is in one.

  bool mla() const { return latent_dim > 0; }

  // Layout of a block of `group` on a device that holds `held_kv_heads` of the K/V heads (1 with MLA).
  // REQUIRES: the group has layers, 1 <= held_kv_heads <= kv_heads, format specified, block_tokens > 0.
  BlockLayout GroupLayout(const LayerGroup& group, KvFormat format, int32_t block_tokens, int32_t held_kv_heads) const;

  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

// Reads, by field rather than by model type: num_hidden_layers, num_attention_heads, num_key_value_heads (default: all
// heads), head_dim (default: hidden_size / heads), kv_lora_rank with qk_rope_head_dim (MLA), vocab_size,
// max_position_embeddings, dtype or torch_dtype. Spans of layers, the first that applies:
//   layer_types                        full_attention or sliding_attention for each layer
//   sliding_window null or absent      all full; absent is refused where the model type has a window by default
//   use_sliding_window false           all full; absent counts as false for the Qwen family alone
//   use_sliding_window true            the first max_window_layers are full, the rest are windows
//   sliding_window_pattern P           each P-th layer is full, the rest are windows; when it is absent, P is 2 for
//                                      gemma2 and gpt_oss, 4 for cohere2, 6 for gemma3
//   sliding_window alone               all windows
// INVALID_ARGUMENT naming the field: absent, of a wrong type or out of range; heads that do not divide; an unknown
// layer type or dtype; a field by which layers keep state of another kind or shape. Other fields are ignored.
absl::StatusOr<ModelShape> ReadModelShape(const ConfigFields& fields);

// The same from the text of a config.json, where the language model may be described in `text_config`.
// `what` begins every message. Errors also: not JSON, duplicate names.
absl::StatusOr<ModelShape> ParseModelShape(absl::string_view json, absl::string_view what = "config.json");

}  // namespace kvmesh

#endif  // KVMESH_WORKER_MODEL_MODEL_SHAPE_H_
