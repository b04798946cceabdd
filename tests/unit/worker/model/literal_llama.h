// A Llama model written down literally, in double precision, without cache, blocks or chunks: every position attends
// under the mask as it is defined. The oracle for windows, learned sinks and bounded streaming.
#ifndef KVMESH_TESTS_UNIT_WORKER_MODEL_LITERAL_LLAMA_H_
#define KVMESH_TESTS_UNIT_WORKER_MODEL_LITERAL_LLAMA_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/model/forward_batch.h"
#include "worker/model/llama_config.h"
#include "worker/model/safetensors.h"

namespace kvmesh::testing {

class LiteralLlama {
 public:
  using Rows = std::vector<std::vector<double>>;  // by position

  LiteralLlama(const std::string& dir, const LlamaConfig& config) : config_(config) {
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(dir + "/model.safetensors");
    EXPECT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
  }

  // Logits of every position.
  Rows Logits(std::span<const uint32_t> tokens, const StreamingPolicy& policy = {}) const {
    const int64_t hidden = config_.hidden_size;
    const std::vector<float> embedding = Read("model.embed_tokens.weight", {config_.vocab_size, hidden});
    Rows x;
    for (const uint32_t token : tokens) {
      x.emplace_back(embedding.begin() + token * hidden, embedding.begin() + (token + 1) * hidden);
    }
    for (int32_t layer = 0; layer < config_.layers; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      Add(x, Attention(prefix, WindowOf(layer), Norm(x, prefix + "input_layernorm.weight"), policy));
      Add(x, Mlp(prefix, Norm(x, prefix + "post_attention_layernorm.weight")));
    }
    return Times(Norm(x, "model.norm.weight"), "lm_head.weight", config_.vocab_size, hidden);
  }

 private:
  std::vector<float> Read(const std::string& name, const std::vector<int64_t>& shape) const {
    const absl::StatusOr<TensorView> tensor = file_->Tensor(name, shape);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return tensor->ToFloat();
  }

  int64_t WindowOf(int32_t layer) const {
    for (const LayerGroup& group : config_.groups) {
      if (std::find(group.layers.begin(), group.layers.end(), layer) != group.layers.end()) return group.window;
    }
    ADD_FAILURE() << "layer " << layer << " is in no group";
    return 0;
  }

  static void Add(Rows& x, const Rows& y) {
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t i = 0; i < x[t].size(); ++i) x[t][i] += y[t][i];
    }
  }

  Rows Norm(const Rows& x, const std::string& name) const {
    const std::vector<float> weight = Read(name, {config_.hidden_size});
    Rows out = x;
    for (std::vector<double>& row : out) {
      double sum = 0;
      for (const double value : row) sum += value * value;
      const double scale = 1 / std::sqrt(sum / static_cast<double>(row.size()) + config_.rms_norm_eps);
      for (size_t i = 0; i < row.size(); ++i) row[i] *= scale * weight[i];
    }
    return out;
  }

  Rows Times(const Rows& x, const std::string& name, int64_t columns, int64_t depth) const {
    const std::vector<float> weight = Read(name, {columns, depth});
    Rows out(x.size(), std::vector<double>(static_cast<size_t>(columns)));
    for (size_t t = 0; t < x.size(); ++t) {
      for (int64_t c = 0; c < columns; ++c) {
        for (int64_t k = 0; k < depth; ++k) out[t][c] += x[t][k] * weight[c * depth + k];
      }
    }
    return out;
  }

  Rows Mlp(const std::string& prefix, const Rows& x) const {
    Rows gate = Times(x, prefix + "mlp.gate_proj.weight", config_.intermediate_size, config_.hidden_size);
    const Rows up = Times(x, prefix + "mlp.up_proj.weight", config_.intermediate_size, config_.hidden_size);
    for (size_t t = 0; t < gate.size(); ++t) {
      for (size_t i = 0; i < gate[t].size(); ++i) gate[t][i] = gate[t][i] / (1 + std::exp(-gate[t][i])) * up[t][i];
    }
    return Times(gate, prefix + "mlp.down_proj.weight", config_.hidden_size, config_.intermediate_size);
  }

  // Head `head` of a row, rotated at `position`.
  std::vector<double> Rotated(const std::vector<double>& row, int64_t head, int64_t position) const {
    const int64_t dim = config_.head_dim, half = dim / 2;
    std::vector<double> out(row.begin() + head * dim, row.begin() + (head + 1) * dim);
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(config_.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
      const double a = out[i], b = out[i + half];
      out[i] = a * std::cos(angle) - b * std::sin(angle);
      out[i + half] = b * std::cos(angle) + a * std::sin(angle);
    }
    return out;
  }

  Rows Attention(const std::string& prefix, int64_t window, const Rows& x, const StreamingPolicy& policy) const {
    const int64_t hidden = config_.hidden_size, dim = config_.head_dim;
    const Rows query = Times(x, prefix + "self_attn.q_proj.weight", config_.query_width(), hidden);
    const Rows key = Times(x, prefix + "self_attn.k_proj.weight", config_.kv_width(), hidden);
    const Rows value = Times(x, prefix + "self_attn.v_proj.weight", config_.kv_width(), hidden);
    const std::vector<float> sinks =
        config_.attention_sinks ? Read(prefix + "self_attn.sinks", {config_.heads}) : std::vector<float>();
    Rows mixed(x.size(), std::vector<double>(static_cast<size_t>(config_.query_width())));
    for (int64_t t = 0; t < static_cast<int64_t>(x.size()); ++t) {
      for (int64_t head = 0; head < config_.heads; ++head) {
        const int64_t kv_head = head / (config_.heads / config_.kv_heads);
        double total = sinks.empty() ? 0 : std::exp(static_cast<double>(sinks[head]));
        for (int64_t j = 0; j <= t; ++j) {
          if (window > 0 && t - j >= window) continue;
          const bool outside = policy.window > 0 && t - j >= policy.window;
          if (outside && j >= policy.sinks) continue;
          const int64_t at = outside ? std::min(t, policy.sinks + policy.window - 1) : t;
          const std::vector<double> q = Rotated(query[t], head, at), k = Rotated(key[j], kv_head, j);
          double score = 0;
          for (int64_t d = 0; d < dim; ++d) score += q[d] * k[d];
          const double weight = std::exp(score / std::sqrt(static_cast<double>(dim)));
          total += weight;
          for (int64_t d = 0; d < dim; ++d) mixed[t][head * dim + d] += weight * value[j][kv_head * dim + d];
        }
        for (int64_t d = 0; d < dim; ++d) mixed[t][head * dim + d] /= total;
      }
    }
    return Times(mixed, prefix + "self_attn.o_proj.weight", hidden, config_.query_width());
  }

  const LlamaConfig config_;
  std::unique_ptr<SafetensorsFile> file_;
};

}  // namespace kvmesh::testing

#endif  // KVMESH_TESTS_UNIT_WORKER_MODEL_LITERAL_LLAMA_H_
