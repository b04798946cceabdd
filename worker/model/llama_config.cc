#include "worker/model/llama_config.h"

#include "absl/strings/str_cat.h"
#include "worker/model/config_fields.h"
#include "worker/model/strict_json.h"

namespace kvmesh {
namespace {

using nlohmann::json;

absl::Status ReadTokenId(const ConfigFields& fields, const json& value, const char* name, int64_t vocab_size,
                         uint32_t& out) {
  const std::optional<int64_t> id = JsonCount(value, vocab_size - 1);
  if (!id) return fields.Bad(name, "not a token id below vocab_size");
  out = static_cast<uint32_t>(*id);
  return absl::OkStatus();
}

// bos_token_id: an id or null. eos_token_id: an id, an array of ids, or null.
absl::Status ReadMarks(const ConfigFields& fields, LlamaConfig& out) {
  const json& bos = fields["bos_token_id"];
  if (!bos.is_null()) {
    out.bos_id.emplace();
    KVMESH_RETURN_IF_ERROR(ReadTokenId(fields, bos, "bos_token_id", out.vocab_size, *out.bos_id));
  }
  const json& eos = fields["eos_token_id"];
  if (eos.is_null()) return absl::OkStatus();
  const json list = eos.is_array() ? eos : json::array({eos});
  if (list.size() > kMaxEosIds) return fields.Bad("eos_token_id", absl::StrCat("more than ", kMaxEosIds, " ids"));
  for (const json& id : list) {
    out.eos_ids.emplace_back();
    KVMESH_RETURN_IF_ERROR(ReadTokenId(fields, id, "eos_token_id", out.vocab_size, out.eos_ids.back()));
  }
  return absl::OkStatus();
}

// Refuses all that would change the computation in a way that is not implemented.
absl::Status CheckSupported(const ConfigFields& fields) {
  const json& architectures = fields["architectures"];
  const bool llama = architectures == json::array({"LlamaForCausalLM"});
  if (!llama && architectures != json::array({"MistralForCausalLM"})) {
    return fields.Bad("architectures", "neither [\"LlamaForCausalLM\"] nor [\"MistralForCausalLM\"]");
  }
  const json& type = fields["model_type"];
  if (!type.is_null() && type != (llama ? "llama" : "mistral"))
    return fields.Bad("model_type", "not of the architecture");
  const json& activation = fields["hidden_act"];
  if (!activation.is_null() && activation != "silu") return fields.Bad("hidden_act", "not \"silu\"");
  for (const char* name : {"rope_scaling", "rope_parameters", "kv_lora_rank", "quantization_config"}) {
    if (!fields[name].is_null()) return fields.Bad(name, "not supported");
  }
  for (const char* name : {"attention_bias", "mlp_bias"}) {
    bool bias = false;
    KVMESH_RETURN_IF_ERROR(fields.ReadFlag(name, bias));
    if (bias) return fields.Bad(name, "not supported");
  }
  const json& rotated = fields["partial_rotary_factor"];
  if (!rotated.is_null() && rotated != 1.0) return fields.Bad("partial_rotary_factor", "only 1 is supported");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LlamaConfig> ParseLlamaConfig(absl::string_view text) {
  const absl::StatusOr<ConfigFields> parsed = ConfigFields::Parse(text, "config.json");
  if (!parsed.ok()) return parsed.status();
  const ConfigFields& fields = *parsed;
  KVMESH_RETURN_IF_ERROR(CheckSupported(fields));
  KVMESH_RETURN_IF_ERROR(fields.Require(
      {"hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta"}));
  const absl::StatusOr<ModelShape> shape = ReadModelShape(fields);
  if (!shape.ok()) return shape.status();

  LlamaConfig out;
  out.hidden_size = shape->hidden_size;
  out.layers = shape->layers;
  out.heads = shape->heads;
  out.kv_heads = shape->kv_heads;
  out.head_dim = shape->head_dim;
  out.vocab_size = shape->vocab_size;
  out.max_positions = shape->max_positions;
  for (const LayerGroup& group : shape->groups) {
    if (!group.layers.empty()) out.groups.push_back(group);
  }
  KVMESH_RETURN_IF_ERROR(fields.ReadInt("intermediate_size", 1, kMaxIntermediateSize, out.intermediate_size));
  double eps = 0;
  KVMESH_RETURN_IF_ERROR(fields.ReadNumber("rms_norm_eps", 1e-12, 1, eps));
  out.rms_norm_eps = static_cast<float>(eps);
  KVMESH_RETURN_IF_ERROR(fields.ReadNumber("rope_theta", 1, 1e12, out.rope_theta));
  KVMESH_RETURN_IF_ERROR(fields.ReadFlag("tie_word_embeddings", out.tie_word_embeddings));
  KVMESH_RETURN_IF_ERROR(fields.ReadFlag("attention_sinks", out.attention_sinks));
  KVMESH_RETURN_IF_ERROR(ReadMarks(fields, out));
  return out;
}

}  // namespace kvmesh
