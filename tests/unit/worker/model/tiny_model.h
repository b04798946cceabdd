// A small random model folder, so that tests need no trained one.
#ifndef KVMESH_TESTS_UNIT_WORKER_MODEL_TINY_MODEL_H_
#define KVMESH_TESTS_UNIT_WORKER_MODEL_TINY_MODEL_H_

#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/base/bytes.h"
#include "nlohmann/json.hpp"

namespace kvmesh::testing {

inline void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// A safetensors file of the tensors in order, fp32, random normal values times 0.3.
inline std::string RandomSafetensors(const std::vector<NamedTensor>& tensors, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.3f);
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const NamedTensor& tensor : tensors) {
    const size_t begin = data.size();
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    for (int64_t i = 0; i < count; ++i) {
      const float value = normal(random);
      data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  std::string out;
  AppendLittleEndian(uint64_t{text.size()}, out);
  return out + text + data;
}

// hidden 40, FFN 52, 3 layers, 6 heads of 8 over 2 KV heads, vocabulary 67: no width is a multiple of a vector.
inline nlohmann::json TinyConfig() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 40},
          {"intermediate_size", 52},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 6},
          {"num_key_value_heads", 2},
          {"head_dim", 8},
          {"vocab_size", 67},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", false},
          {"bos_token_id", 1},
          {"eos_token_id", nullptr}};
}

inline std::vector<NamedTensor> TinyTensors() {
  std::vector<NamedTensor> out = {
      {"model.embed_tokens.weight", {67, 40}}, {"model.norm.weight", {40}}, {"lm_head.weight", {67, 40}}};
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const std::vector<NamedTensor> tensors = {
        {"input_layernorm.weight", {40}},      {"post_attention_layernorm.weight", {40}},
        {"self_attn.q_proj.weight", {48, 40}}, {"self_attn.k_proj.weight", {16, 40}},
        {"self_attn.v_proj.weight", {16, 40}}, {"self_attn.o_proj.weight", {40, 48}},
        {"mlp.gate_proj.weight", {52, 40}},    {"mlp.up_proj.weight", {52, 40}},
        {"mlp.down_proj.weight", {40, 52}}};
    for (const NamedTensor& tensor : tensors) out.push_back({prefix + tensor.name, tensor.shape});
  }
  return out;
}

// Writes config.json and model.safetensors.
inline void WriteTinyModel(const std::string& dir) {
  WriteFile(dir + "/config.json", TinyConfig().dump());
  WriteFile(dir + "/model.safetensors", RandomSafetensors(TinyTensors(), 7));
}

}  // namespace kvmesh::testing

#endif  // KVMESH_TESTS_UNIT_WORKER_MODEL_TINY_MODEL_H_
