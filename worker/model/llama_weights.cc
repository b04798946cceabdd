#include "worker/model/llama_weights.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

// Reads tensors one after the other; keeps the first error and does nothing after it.
class Reader {
 public:
  Reader(const SafetensorsFile& file, const RowKernels& kernels) : file_(file), kernels_(kernels) {}

  std::vector<float> Values(const std::string& name, const std::vector<int64_t>& shape) {
    if (!status_.ok()) return {};
    absl::StatusOr<TensorView> tensor = file_.Tensor(name, shape);
    if (!tensor.ok()) {
      status_ = tensor.status();
      return {};
    }
    return tensor->ToFloat();
  }

  PackedMatrix Matrix(const std::string& name, int64_t columns, int64_t depth) {
    const std::vector<float> values = Values(name, {columns, depth});
    if (!status_.ok()) return {};
    return PackMatrix(kernels_, values, columns, depth);
  }

  const absl::Status& status() const { return status_; }

 private:
  const SafetensorsFile& file_;
  const RowKernels& kernels_;
  absl::Status status_;
};

LlamaLayerWeights ReadLayer(Reader& reader, const LlamaConfig& config, int32_t layer) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  LlamaLayerWeights out;
  out.attention_norm = reader.Values(prefix + "input_layernorm.weight", {hidden});
  out.query = reader.Matrix(prefix + "self_attn.q_proj.weight", config.query_width(), hidden);
  out.key = reader.Matrix(prefix + "self_attn.k_proj.weight", config.kv_width(), hidden);
  out.value = reader.Matrix(prefix + "self_attn.v_proj.weight", config.kv_width(), hidden);
  out.output = reader.Matrix(prefix + "self_attn.o_proj.weight", hidden, config.query_width());
  if (config.attention_sinks) out.sinks = reader.Values(prefix + "self_attn.sinks", {config.heads});
  out.mlp_norm = reader.Values(prefix + "post_attention_layernorm.weight", {hidden});
  out.gate = reader.Matrix(prefix + "mlp.gate_proj.weight", inner, hidden);
  out.up = reader.Matrix(prefix + "mlp.up_proj.weight", inner, hidden);
  out.down = reader.Matrix(prefix + "mlp.down_proj.weight", hidden, inner);
  return out;
}

}  // namespace

absl::StatusOr<LlamaWeights> LoadLlamaWeights(const SafetensorsFile& file, const LlamaConfig& config,
                                              const RowKernels& kernels) {
  Reader reader(file, kernels);
  LlamaWeights out;
  out.embedding = reader.Values("model.embed_tokens.weight", {config.vocab_size, config.hidden_size});
  for (int32_t layer = 0; layer < config.layers && reader.status().ok(); ++layer) {
    out.layers.push_back(ReadLayer(reader, config, layer));
  }
  out.final_norm = reader.Values("model.norm.weight", {config.hidden_size});
  if (!config.tie_word_embeddings) {
    out.logits = reader.Matrix("lm_head.weight", config.vocab_size, config.hidden_size);
  } else if (reader.status().ok()) {
    out.logits = PackMatrix(kernels, out.embedding, config.vocab_size, config.hidden_size);
  }
  if (!reader.status().ok()) return reader.status();
  return out;
}

}  // namespace kvmesh
