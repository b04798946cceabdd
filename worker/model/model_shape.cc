#include "worker/model/model_shape.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

using nlohmann::json;

// Fields by which layers keep something else than K and V of one shape for each position or for a window: chunked,
// linear, recurrent, shared or cross attention, indexers, dimensions by layer, other names of num_key_value_heads.
// Null, false, 0 and empty switch them off.
constexpr const char* kOtherState[] = {
    "attention_chunk_size",
    "attn_layer_period",
    "attn_type_list",
    "block_configs",
    "block_types",
    "cross_attention_layers",
    "full_attention_interval",
    "global_head_dim",
    "hybrid_override_pattern",
    "index_topk",
    "layers_block_type",
    "multi_query",
    "new_decoder_architecture",
    "num_global_key_value_heads",
    "num_kv_heads",
    "num_kv_shared_layers",
};

// Models that have a window unless their config says null; each `period`-th layer is full when it says no pattern.
struct WindowedModel {
  absl::string_view model_type;
  int32_t period;  // 0: no layer is full
};
constexpr WindowedModel kWindowedModels[] = {{"cohere2", 4},     {"gemma2", 2},  {"gemma3", 6},
                                             {"gemma3_text", 6}, {"gpt_oss", 2}, {"mistral", 0}};

const WindowedModel* FindWindowedModel(absl::string_view model_type) {
  for (const WindowedModel& model : kWindowedModels) {
    if (model.model_type == model_type) return &model;
  }
  return nullptr;
}

absl::Status CheckState(const ConfigFields& fields) {
  for (const char* name : kOtherState) {
    const json& value = fields[name];
    const bool off = value.empty() || value == false || value == 0;
    if (!off) return fields.Bad(name, "not supported");
  }
  return absl::OkStatus();
}

// A dimension of rows: required, a multiple of 8.
absl::Status ReadRowDim(const ConfigFields& fields, const char* name, int64_t max, int32_t& out) {
  KVMESH_RETURN_IF_ERROR(fields.ReadInt(name, 1, max, out));
  if (out == 0) return fields.Bad(name, "missing");
  if (out % 8 != 0 || out > max) return fields.Bad(name, absl::StrCat(out, " is not a multiple of 8 up to ", max));
  return absl::OkStatus();
}

absl::Status ReadLatentRows(const ConfigFields& fields, ModelShape& out) {
  int32_t rope_dim = 0;
  KVMESH_RETURN_IF_ERROR(ReadRowDim(fields, "kv_lora_rank", kMaxLatentDim, out.latent_dim));
  KVMESH_RETURN_IF_ERROR(ReadRowDim(fields, "qk_rope_head_dim", kMaxModelHeadDim, rope_dim));
  out.kv_heads = 1;
  out.head_dim = out.latent_dim + rope_dim;
  return absl::OkStatus();
}

absl::Status ReadHeadRows(const ConfigFields& fields, ModelShape& out) {
  out.kv_heads = out.heads;
  KVMESH_RETURN_IF_ERROR(fields.ReadInt("num_key_value_heads", 1, kMaxAttentionHeads, out.kv_heads));
  if (out.heads % out.kv_heads != 0) {
    return fields.Bad("num_key_value_heads",
                      absl::StrCat(out.kv_heads, " does not divide num_attention_heads ", out.heads));
  }
  if (fields["head_dim"].is_null()) {
    KVMESH_RETURN_IF_ERROR(fields.Require({"hidden_size"}));
    if (out.hidden_size % out.heads != 0) {
      return fields.Bad("num_attention_heads",
                        absl::StrCat(out.heads, " does not divide hidden_size ", out.hidden_size));
    }
    out.head_dim = out.hidden_size / out.heads;
  }
  KVMESH_RETURN_IF_ERROR(ReadRowDim(fields, "head_dim", kMaxModelHeadDim, out.head_dim));
  int64_t value_dim = out.head_dim;
  KVMESH_RETURN_IF_ERROR(fields.ReadInt("v_head_dim", 1, kMaxModelHeadDim, value_dim));
  if (value_dim != out.head_dim) {
    return fields.Bad("v_head_dim", absl::StrCat(value_dim, " is not head_dim ", out.head_dim));
  }
  return absl::OkStatus();
}

absl::Status ReadDtype(const ConfigFields& fields, KvFormat& out) {
  for (const char* name : {"torch_dtype", "dtype"}) {
    std::string dtype;
    KVMESH_RETURN_IF_ERROR(fields.ReadText(name, dtype));
    if (dtype.empty()) continue;
    if (dtype == "float32") {
      out = KvFormat::kF32;
    } else if (dtype == "float16") {
      out = KvFormat::kF16;
    } else if (dtype == "bfloat16") {
      out = KvFormat::kBf16;
    } else {
      return fields.Bad(name, "not float32, float16 or bfloat16");
    }
  }
  return absl::OkStatus();
}

// The layers that layer_types calls sliding.
absl::StatusOr<std::vector<bool>> ReadLayerTypes(const ConfigFields& fields, int32_t layers, bool has_window) {
  const json& types = fields["layer_types"];
  if (!types.is_array() || types.size() != static_cast<size_t>(layers)) {
    return fields.Bad("layer_types", absl::StrCat("not an array of ", layers, " types, one for each layer"));
  }
  std::vector<bool> sliding;
  for (const json& type : types) {
    sliding.push_back(type == "sliding_attention");
    if (!sliding.back() && type != "full_attention") {
      return fields.Bad("layer_types",
                        absl::StrCat("layer ", sliding.size() - 1, " is neither full_attention nor sliding_attention"));
    }
    if (sliding.back() && !has_window) {
      return fields.Bad("sliding_window", "no window, but layer_types has sliding_attention");
    }
  }
  return sliding;
}

// The sliding layers of a config without layer_types.
absl::StatusOr<std::vector<bool>> ReadPattern(const ConfigFields& fields, const ModelShape& shape, bool has_window,
                                              bool from_layer) {
  const WindowedModel* model = FindWindowedModel(shape.model_type);
  if ((model != nullptr || from_layer) && !fields.Mentions("sliding_window")) {
    return fields.Bad("sliding_window", "missing, null says that there is none");
  }
  std::vector<bool> sliding(static_cast<size_t>(shape.layers));
  if (!has_window) return sliding;
  int32_t first = 0;  // sliding layer
  int32_t period = model == nullptr ? 0 : model->period;
  if (from_layer) {
    KVMESH_RETURN_IF_ERROR(fields.Require({"max_window_layers"}));
    KVMESH_RETURN_IF_ERROR(fields.ReadInt("max_window_layers", 0, kMaxLayers, first));
  } else {
    KVMESH_RETURN_IF_ERROR(fields.ReadInt("sliding_window_pattern", 1, kMaxLayers, period));
  }
  for (int32_t i = 0; i < shape.layers; ++i) {
    sliding[static_cast<size_t>(i)] = i >= first && (period == 0 || (i + 1) % period != 0);
  }
  return sliding;
}

absl::Status ReadGroups(const ConfigFields& fields, ModelShape& out) {
  bool used = !absl::StartsWith(out.model_type, "qwen");
  KVMESH_RETURN_IF_ERROR(fields.ReadFlag("use_sliding_window", used));
  int32_t window = 0;
  KVMESH_RETURN_IF_ERROR(fields.ReadInt("sliding_window", 1, kMaxPositions, window));
  if (!used) window = 0;
  const bool from_layer = used && !fields["use_sliding_window"].is_null();
  const absl::StatusOr<std::vector<bool>> sliding = fields["layer_types"].is_null()
                                                        ? ReadPattern(fields, out, window > 0, from_layer)
                                                        : ReadLayerTypes(fields, out.layers, window > 0);
  if (!sliding.ok()) return sliding.status();
  LayerGroup full;
  LayerGroup windowed{.window = window, .layers = {}};
  for (int32_t i = 0; i < out.layers; ++i) {
    ((*sliding)[static_cast<size_t>(i)] ? windowed : full).layers.push_back(i);
  }
  out.groups.push_back(std::move(full));
  if (!windowed.layers.empty()) out.groups.push_back(std::move(windowed));
  return absl::OkStatus();
}

}  // namespace

BlockLayout ModelShape::GroupLayout(const LayerGroup& group, KvFormat format, int32_t block_tokens,
                                    int32_t held_kv_heads) const {
  const int32_t group_layers = static_cast<int32_t>(group.layers.size());
  if (mla()) return CanonicalMlaLayout(format, group_layers, block_tokens, latent_dim, head_dim - latent_dim);
  return CanonicalLayout(format, group_layers, held_kv_heads, block_tokens, head_dim);
}

absl::StatusOr<ModelShape> ReadModelShape(const ConfigFields& fields) {
  KVMESH_RETURN_IF_ERROR(CheckState(fields));
  ModelShape out;
  KVMESH_RETURN_IF_ERROR(fields.Require({"num_hidden_layers", "num_attention_heads"}));
  KVMESH_RETURN_IF_ERROR(fields.ReadText("model_type", out.model_type));
  KVMESH_RETURN_IF_ERROR(fields.ReadInt("num_hidden_layers", 1, kMaxLayers, out.layers));
  KVMESH_RETURN_IF_ERROR(fields.ReadInt("num_attention_heads", 1, kMaxAttentionHeads, out.heads));
  KVMESH_RETURN_IF_ERROR(fields.ReadInt("hidden_size", 1, kMaxHiddenSize, out.hidden_size));
  KVMESH_RETURN_IF_ERROR(fields["kv_lora_rank"].is_null() ? ReadHeadRows(fields, out) : ReadLatentRows(fields, out));
  KVMESH_RETURN_IF_ERROR(fields.ReadInt("vocab_size", 1, kMaxVocabSize, out.vocab_size));
  KVMESH_RETURN_IF_ERROR(fields.ReadInt("max_position_embeddings", 1, kMaxPositions, out.max_positions));
  KVMESH_RETURN_IF_ERROR(ReadDtype(fields, out.dtype));
  KVMESH_RETURN_IF_ERROR(ReadGroups(fields, out));
  return out;
}

absl::StatusOr<ModelShape> ParseModelShape(absl::string_view text, absl::string_view what) {
  const absl::StatusOr<ConfigFields> whole = ConfigFields::Parse(text, what);
  if (!whole.ok()) return whole.status();
  if ((*whole)["text_config"].is_null() || !(*whole)["num_hidden_layers"].is_null()) return ReadModelShape(*whole);
  const absl::StatusOr<ConfigFields> nested = whole->Nested("text_config");
  if (!nested.ok()) return nested.status();
  absl::StatusOr<ModelShape> shape = ReadModelShape(*nested);
  if (shape.ok() && (*nested)["torch_dtype"].is_null() && (*nested)["dtype"].is_null()) {
    KVMESH_RETURN_IF_ERROR(ReadDtype(*whole, shape->dtype));
  }
  return shape;
}

}  // namespace kvmesh
