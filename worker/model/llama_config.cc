#include "worker/model/llama_config.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "worker/model/strict_json.h"

namespace kvmesh {
namespace {

using nlohmann::json;

absl::Status Bad(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("config.json: ", field, ": ", what));
}

// The value of `name`, or null when it is absent.
const json& Field(const json& config, const char* name) {
  static const json kNull;
  const auto found = config.find(name);
  return found == config.end() ? kNull : *found;
}

// Reads an integer from 1 to `max`; leaves `out` alone when the field is absent or null and not required.
template <class Int>
absl::Status ReadSize(const json& config, const char* name, int64_t max, bool required, Int& out) {
  const json& value = Field(config, name);
  if (value.is_null()) return required ? Bad(name, "missing") : absl::OkStatus();
  const std::optional<int64_t> size = JsonCount(value, max);
  if (!size || *size == 0) return Bad(name, absl::StrCat("not an integer from 1 to ", max));
  out = static_cast<Int>(*size);
  return absl::OkStatus();
}

absl::Status ReadFlag(const json& config, const char* name, bool& out) {
  const json& value = Field(config, name);
  if (value.is_null()) return absl::OkStatus();
  if (!value.is_boolean()) return Bad(name, "not a boolean");
  out = value.get<bool>();
  return absl::OkStatus();
}

absl::Status ReadNumber(const json& config, const char* name, double min, double max, double& out) {
  const json& value = Field(config, name);
  if (value.is_null()) return Bad(name, "missing");
  if (!value.is_number()) return Bad(name, "not a number");
  const double number = value.get<double>();
  if (!(number >= min && number <= max)) return Bad(name, absl::StrCat("not between ", min, " and ", max));
  out = number;
  return absl::OkStatus();
}

absl::Status ReadTokenId(const json& value, const char* name, int64_t vocab_size, uint32_t& out) {
  const std::optional<int64_t> id = JsonCount(value, vocab_size - 1);
  if (!id) return Bad(name, "not a token id below vocab_size");
  out = static_cast<uint32_t>(*id);
  return absl::OkStatus();
}

// bos_token_id: an id or null. eos_token_id: an id, an array of ids, or null.
absl::Status ReadMarks(const json& config, LlamaConfig& out) {
  const json& bos = Field(config, "bos_token_id");
  if (!bos.is_null()) {
    out.bos_id.emplace();
    KVMESH_RETURN_IF_ERROR(ReadTokenId(bos, "bos_token_id", out.vocab_size, *out.bos_id));
  }
  const json& eos = Field(config, "eos_token_id");
  if (eos.is_null()) return absl::OkStatus();
  const json list = eos.is_array() ? eos : json::array({eos});
  if (list.size() > kMaxEosIds) return Bad("eos_token_id", absl::StrCat("more than ", kMaxEosIds, " ids"));
  for (const json& id : list) {
    out.eos_ids.emplace_back();
    KVMESH_RETURN_IF_ERROR(ReadTokenId(id, "eos_token_id", out.vocab_size, out.eos_ids.back()));
  }
  return absl::OkStatus();
}

// Refuses all that would change the computation in a way that is not implemented.
absl::Status CheckSupported(const json& config) {
  const json& architectures = Field(config, "architectures");
  if (architectures != json::array({"LlamaForCausalLM"})) return Bad("architectures", "not [\"LlamaForCausalLM\"]");
  const json& type = Field(config, "model_type");
  if (!type.is_null() && type != "llama") return Bad("model_type", "not \"llama\"");
  const json& activation = Field(config, "hidden_act");
  if (!activation.is_null() && activation != "silu") return Bad("hidden_act", "not \"silu\"");
  for (const char* name : {"rope_scaling", "rope_parameters", "sliding_window", "quantization_config"}) {
    if (!Field(config, name).is_null()) return Bad(name, "not supported");
  }
  for (const char* name : {"attention_bias", "mlp_bias"}) {
    bool bias = false;
    KVMESH_RETURN_IF_ERROR(ReadFlag(config, name, bias));
    if (bias) return Bad(name, "not supported");
  }
  const json& rotated = Field(config, "partial_rotary_factor");
  if (!rotated.is_null() && rotated != 1.0) return Bad("partial_rotary_factor", "only 1 is supported");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LlamaConfig> ParseLlamaConfig(absl::string_view text) {
  absl::StatusOr<json> parsed = ParseStrictJson(text, "config.json");
  if (!parsed.ok()) return parsed.status();
  const json& config = *parsed;
  if (!config.is_object()) return absl::InvalidArgumentError("config.json: not an object");
  KVMESH_RETURN_IF_ERROR(CheckSupported(config));

  LlamaConfig out;
  KVMESH_RETURN_IF_ERROR(ReadSize(config, "hidden_size", kMaxHiddenSize, true, out.hidden_size));
  KVMESH_RETURN_IF_ERROR(ReadSize(config, "intermediate_size", kMaxIntermediateSize, true, out.intermediate_size));
  KVMESH_RETURN_IF_ERROR(ReadSize(config, "num_hidden_layers", kMaxLayers, true, out.layers));
  KVMESH_RETURN_IF_ERROR(ReadSize(config, "num_attention_heads", kMaxAttentionHeads, true, out.heads));
  out.kv_heads = out.heads;
  KVMESH_RETURN_IF_ERROR(ReadSize(config, "num_key_value_heads", kMaxAttentionHeads, false, out.kv_heads));
  if (out.heads % out.kv_heads != 0) return Bad("num_key_value_heads", "does not divide num_attention_heads");
  KVMESH_RETURN_IF_ERROR(ReadSize(config, "head_dim", kMaxModelHeadDim, false, out.head_dim));
  if (out.head_dim == 0) {
    if (out.hidden_size % out.heads != 0) return Bad("num_attention_heads", "does not divide hidden_size");
    out.head_dim = out.hidden_size / out.heads;
  }
  if (out.head_dim % 8 != 0 || out.head_dim > kMaxModelHeadDim) {
    return Bad("head_dim", absl::StrCat("not a multiple of 8 up to ", kMaxModelHeadDim));
  }
  KVMESH_RETURN_IF_ERROR(ReadSize(config, "vocab_size", kMaxVocabSize, true, out.vocab_size));
  KVMESH_RETURN_IF_ERROR(ReadSize(config, "max_position_embeddings", kMaxPositions, true, out.max_positions));
  double eps = 0;
  KVMESH_RETURN_IF_ERROR(ReadNumber(config, "rms_norm_eps", 1e-12, 1, eps));
  out.rms_norm_eps = static_cast<float>(eps);
  KVMESH_RETURN_IF_ERROR(ReadNumber(config, "rope_theta", 1, 1e12, out.rope_theta));
  KVMESH_RETURN_IF_ERROR(ReadFlag(config, "tie_word_embeddings", out.tie_word_embeddings));
  KVMESH_RETURN_IF_ERROR(ReadMarks(config, out));
  return out;
}

}  // namespace kvmesh
