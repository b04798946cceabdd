#include "worker/model/llama_config.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/worker/model/tiny_model.h"

namespace kvmesh {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(LlamaConfigTest, ReadsEveryField) {
  const absl::StatusOr<LlamaConfig> config = ParseLlamaConfig(testing::TinyConfig().dump());
  ASSERT_TRUE(config.ok()) << config.status();
  LlamaConfig expected;
  expected.hidden_size = 40;
  expected.intermediate_size = 52;
  expected.layers = 3;
  expected.heads = 6;
  expected.kv_heads = 2;
  expected.head_dim = 8;
  expected.vocab_size = 67;
  expected.max_positions = 256;
  expected.rms_norm_eps = 1e-5f;
  expected.rope_theta = 10000;
  expected.groups = {{.window = 0, .layers = {0, 1, 2}}};
  expected.bos_id = 1;
  EXPECT_EQ(*config, expected);
  EXPECT_EQ(config->query_width(), 48);
  EXPECT_EQ(config->kv_width(), 16);
  EXPECT_EQ(config->CacheLayout(KvFormat::kBf16, 16).block_bytes, 3 * 2 * 2 * 16 * 8 * 2);
}

TEST(LlamaConfigTest, DefaultsFollowTheFormat) {
  json config = testing::TinyConfig();
  config["hidden_size"] = 48;
  config.erase("num_key_value_heads");
  config.erase("head_dim");
  config.erase("bos_token_id");
  config["eos_token_id"] = {2, 3};
  config["unknown_field"] = "ignored";
  config["rope_scaling"] = nullptr;
  const absl::StatusOr<LlamaConfig> parsed = ParseLlamaConfig(config.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->kv_heads, 6);
  EXPECT_EQ(parsed->head_dim, 8);
  EXPECT_FALSE(parsed->bos_id.has_value());
  EXPECT_EQ(parsed->eos_ids, (std::vector<uint32_t>{2, 3}));
}

TEST(LlamaConfigTest, RefusesWhatItDoesNotSupportByName) {
  const std::vector<std::pair<std::string, json>> refused = {
      {"architectures", {"MixtralForCausalLM"}},
      {"architectures", "LlamaForCausalLM"},
      {"model_type", "mistral"},
      {"hidden_act", "gelu"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}},
      {"rope_parameters", {{"rope_theta", 10000.0}}},
      {"sliding_window", 0},
      {"sliding_window", kMaxPositions + 1},
      {"layer_types", {"full_attention", "chunked_attention", "full_attention"}},
      {"layer_types", {"full_attention"}},
      {"attention_sinks", 1},
      {"kv_lora_rank", 512},
      {"attention_chunk_size", 8192},
      {"quantization_config", json::object()},
      {"attention_bias", true},
      {"attention_bias", 1},
      {"mlp_bias", true},
      {"partial_rotary_factor", 0.5},
      {"hidden_size", 0},
      {"hidden_size", -8},
      {"hidden_size", 64.0},
      {"hidden_size", "64"},
      {"hidden_size", kMaxHiddenSize + 1},
      {"hidden_size", nullptr},
      {"intermediate_size", kMaxIntermediateSize + 1},
      {"num_hidden_layers", kMaxLayers + 1},
      {"num_attention_heads", kMaxAttentionHeads + 1},
      {"num_key_value_heads", 4},
      {"num_key_value_heads", 12},
      {"head_dim", 12},
      {"head_dim", kMaxModelHeadDim + 8},
      {"vocab_size", kMaxVocabSize + 1},
      {"vocab_size", 18446744073709551615u},
      {"max_position_embeddings", kMaxPositions + 1},
      {"rms_norm_eps", 0},
      {"rms_norm_eps", "1e-5"},
      {"rope_theta", 0},
      {"rope_theta", nullptr},
      {"tie_word_embeddings", "yes"},
      {"bos_token_id", 67},
      {"bos_token_id", -1},
      {"eos_token_id", {1, 67}},
      {"eos_token_id", std::vector<int>(kMaxEosIds + 1, 1)},
  };
  for (const auto& [field, value] : refused) {
    json config = testing::TinyConfig();
    config[field] = value;
    const absl::Status status = ParseLlamaConfig(config.dump()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field << " " << value;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field)) << value;
  }
}

TEST(LlamaConfigTest, LayersFallIntoGroupsBySpan) {
  json config = testing::TinyConfig();
  config["sliding_window"] = 32;
  config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  config["attention_sinks"] = true;
  const absl::StatusOr<LlamaConfig> some = ParseLlamaConfig(config.dump());
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ(some->groups, (std::vector<LayerGroup>{{0, {1}}, {32, {0, 2}}}));
  EXPECT_TRUE(some->attention_sinks);
  EXPECT_EQ(some->CacheLayout(KvFormat::kF32, 16, 0).block_bytes, 1 * 2 * 2 * 16 * 8 * 4);
  EXPECT_EQ(some->CacheLayout(KvFormat::kF32, 16, 1).block_bytes, 2 * 2 * 2 * 16 * 8 * 4);

  config["architectures"] = {"MistralForCausalLM"};
  config["model_type"] = "mistral";
  config.erase("layer_types");
  const absl::StatusOr<LlamaConfig> all = ParseLlamaConfig(config.dump());
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->groups, (std::vector<LayerGroup>{{32, {0, 1, 2}}}));
}

TEST(LlamaConfigTest, RefusesWhatIsNotAnObject) {
  for (const char* text : {"", "{", "[]", "1", "null", "{\"hidden_size\": 1e999}", "\xff"}) {
    EXPECT_EQ(ParseLlamaConfig(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  const std::string deep = "{\"x\":" + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_THAT(std::string(ParseLlamaConfig(deep).status().message()), HasSubstr("deep"));
  const std::string twice = R"({"hidden_size": 8, "hidden_size": 16})";
  EXPECT_THAT(std::string(ParseLlamaConfig(twice).status().message()), HasSubstr("duplicate name hidden_size"));
}

// Whatever happens to a config, it is refused or stays within the limits.
TEST(LlamaConfigTest, MutatedConfigsStayWithinLimits) {
  const std::string good = testing::TinyConfig().dump();
  int parsed = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::string bad = good;
    for (uint32_t edits = 1 + random() % 3; edits > 0; --edits) {
      bad[random() % bad.size()] = static_cast<char>(random() % 4 == 0 ? random() : '0' + random() % 10);
    }
    const absl::StatusOr<LlamaConfig> config = ParseLlamaConfig(bad);
    if (!config.ok()) {
      EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << "seed " << seed;
      continue;
    }
    ++parsed;
    EXPECT_GE(config->hidden_size, 1) << "seed " << seed;
    EXPECT_LE(config->hidden_size, kMaxHiddenSize) << "seed " << seed;
    EXPECT_EQ(config->heads % config->kv_heads, 0) << "seed " << seed;
    EXPECT_EQ(config->head_dim % 8, 0) << "seed " << seed;
    EXPECT_LE(config->head_dim, kMaxModelHeadDim) << "seed " << seed;
    EXPECT_LE(config->max_positions, kMaxPositions) << "seed " << seed;
  }
  EXPECT_GT(parsed, 30);
}

}  // namespace
}  // namespace kvmesh
