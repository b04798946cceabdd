#include "worker/model/model_shape.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvmesh {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

json Llama3() {
  return {{"model_type", "llama"},     {"num_hidden_layers", 80},
          {"num_attention_heads", 64}, {"num_key_value_heads", 8},
          {"hidden_size", 8192},       {"vocab_size", 128256},
          {"torch_dtype", "bfloat16"}, {"max_position_embeddings", 131072}};
}

// `layers` layers of one head of 64, with whatever `more` says.
json Small(int layers, const json& more) {
  json config = {{"num_hidden_layers", layers}, {"num_attention_heads", 1}, {"head_dim", 64}};
  config.update(more);
  return config;
}

ModelShape Parse(const json& config) {
  const absl::StatusOr<ModelShape> shape = ParseModelShape(config.dump());
  EXPECT_TRUE(shape.ok()) << shape.status() << " " << config;
  return shape.value_or(ModelShape());
}

std::string Fault(const json& config) {
  const absl::Status status = ParseModelShape(config.dump()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << config;
  return std::string(status.message());
}

// The windowed layers of a config with at most one window, as "wwfw": w is a window, f is full.
std::string Spans(const json& config) {
  const ModelShape shape = Parse(config);
  std::string out(static_cast<size_t>(shape.layers), '?');
  for (const LayerGroup& group : shape.groups) {
    for (const int32_t layer : group.layers) out[static_cast<size_t>(layer)] = group.window == 0 ? 'f' : 'w';
  }
  return out;
}

TEST(ModelShapeTest, ReadsALlamaConfig) {
  const ModelShape shape = Parse(Llama3());
  EXPECT_EQ(shape.model_type, "llama");
  EXPECT_EQ(shape.layers, 80);
  EXPECT_EQ(shape.heads, 64);
  EXPECT_EQ(shape.kv_heads, 8);
  EXPECT_EQ(shape.head_dim, 128);
  EXPECT_EQ(shape.latent_dim, 0);
  EXPECT_EQ(shape.hidden_size, 8192);
  EXPECT_EQ(shape.vocab_size, 128256);
  EXPECT_EQ(shape.max_positions, 131072);
  EXPECT_EQ(shape.dtype, KvFormat::kBf16);
  ASSERT_THAT(shape.groups, SizeIs(1));
  EXPECT_EQ(shape.groups[0].window, 0);
  EXPECT_THAT(shape.groups[0].layers, SizeIs(80));
  EXPECT_EQ(shape.GroupLayout(shape.groups[0], KvFormat::kBf16, 16, 8).block_bytes, 327680 * 16);
  EXPECT_EQ(shape.GroupLayout(shape.groups[0], KvFormat::kBf16, 16, 2).block_bytes, 327680 * 16 / 4);
}

TEST(ModelShapeTest, WhatIsLeftOutHasDefaults) {
  const ModelShape shape = Parse({{"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"hidden_size", 320}});
  EXPECT_EQ(shape.kv_heads, 4);
  EXPECT_EQ(shape.head_dim, 80);
  EXPECT_EQ(shape.dtype, KvFormat::kF32);
  EXPECT_EQ(shape.vocab_size, 0);
  EXPECT_EQ(Parse(Small(1, {{"dtype", "float16"}})).dtype, KvFormat::kF16);
  EXPECT_EQ(Parse(Small(1, {{"head_dim", 256}, {"hidden_size", 100}})).head_dim, 256);
}

TEST(ModelShapeTest, LatentAttentionHasOneRowPerToken) {
  const json deepseek = {{"model_type", "deepseek_v3"}, {"num_hidden_layers", 61}, {"num_attention_heads", 128},
                         {"num_key_value_heads", 128},  {"hidden_size", 7168},     {"kv_lora_rank", 512},
                         {"qk_rope_head_dim", 64},      {"qk_nope_head_dim", 128}, {"v_head_dim", 128},
                         {"torch_dtype", "bfloat16"},   {"vocab_size", 129280}};
  const ModelShape shape = Parse(deepseek);
  EXPECT_TRUE(shape.mla());
  EXPECT_EQ(shape.kv_heads, 1);
  EXPECT_EQ(shape.head_dim, 576);
  EXPECT_EQ(shape.latent_dim, 512);
  EXPECT_EQ(shape.GroupLayout(shape.groups[0], KvFormat::kBf16, 16, 1),
            CanonicalMlaLayout(KvFormat::kBf16, 61, 16, 512, 64));
}

TEST(ModelShapeTest, MistralHasOneWindowForAllLayers) {
  const ModelShape shape = Parse(Small(3, {{"model_type", "mistral"}, {"sliding_window", 4096}}));
  ASSERT_THAT(shape.groups, SizeIs(2));
  EXPECT_THAT(shape.groups[0].layers, IsEmpty());
  EXPECT_EQ(shape.groups[1].window, 4096);
  EXPECT_THAT(shape.groups[1].layers, ElementsAre(0, 1, 2));
  EXPECT_EQ(Spans(Small(3, {{"model_type", "mistral"}, {"sliding_window", nullptr}})), "fff");
  EXPECT_THAT(Fault(Small(3, {{"model_type", "mistral"}})), HasSubstr("sliding_window: missing"));
}

TEST(ModelShapeTest, LayerTypesDecideBeforeAllElse) {
  const json types = {"sliding_attention", "full_attention", "full_attention", "sliding_attention"};
  const ModelShape shape = Parse(Small(
      4, {{"model_type", "gpt_oss"}, {"sliding_window", 128}, {"layer_types", types}, {"sliding_window_pattern", 4}}));
  ASSERT_THAT(shape.groups, SizeIs(2));
  EXPECT_EQ(shape.groups[1].window, 128);
  EXPECT_THAT(shape.groups[0].layers, ElementsAre(1, 2));
  EXPECT_THAT(shape.groups[1].layers, ElementsAre(0, 3));
  const json full = {"full_attention", "full_attention"};
  EXPECT_EQ(Spans(Small(2, {{"sliding_window", 128}, {"layer_types", full}})), "ff");
  EXPECT_EQ(Spans(Small(2, {{"model_type", "mistral"}, {"layer_types", full}})), "ff");
}

TEST(ModelShapeTest, PatternsCountFullLayersFromTheFirst) {
  const json window = {{"sliding_window", 512}};
  const auto spans = [&](int layers, const json& more) {
    json all = window;
    all.update(more);
    return Spans(Small(layers, all));
  };
  EXPECT_EQ(spans(5, {{"model_type", "gemma2"}}), "wfwfw");
  EXPECT_EQ(spans(4, {{"model_type", "gpt_oss"}}), "wfwf");
  EXPECT_EQ(spans(13, {{"model_type", "gemma3_text"}}), "wwwwwfwwwwwfw");
  EXPECT_EQ(spans(6, {{"model_type", "gemma3_text"}, {"sliding_window_pattern", 3}}), "wwfwwf");
  EXPECT_EQ(spans(8, {{"model_type", "cohere2"}}), "wwwfwwwf");
  EXPECT_EQ(spans(3, {{"sliding_window_pattern", 1}}), "fff");
  EXPECT_EQ(spans(3, {{"sliding_window_pattern", 4}}), "www");
  EXPECT_EQ(Spans(Small(2, {{"sliding_window_pattern", 2}})), "ff");
  EXPECT_THAT(Fault(Small(2, {{"model_type", "gemma2"}})), HasSubstr("sliding_window: missing"));
}

TEST(ModelShapeTest, QwenUsesItsWindowWhenToldTo) {
  const auto spans = [](const json& more) {
    json config = Small(4, {{"model_type", "qwen2"}, {"sliding_window", 32768}, {"max_window_layers", 3}});
    config.update(more);
    return Spans(config);
  };
  EXPECT_EQ(spans(json::object()), "ffff");
  EXPECT_EQ(spans({{"use_sliding_window", false}}), "ffff");
  EXPECT_EQ(spans({{"use_sliding_window", true}}), "fffw");
  EXPECT_EQ(spans({{"use_sliding_window", true}, {"max_window_layers", 0}}), "wwww");
  EXPECT_EQ(spans({{"use_sliding_window", true}, {"max_window_layers", 70}}), "ffff");
  EXPECT_EQ(spans({{"use_sliding_window", true}, {"sliding_window", nullptr}}), "ffff");
  EXPECT_THAT(Fault(Small(4, {{"use_sliding_window", true}, {"sliding_window", 8}})), HasSubstr("max_window_layers"));
  EXPECT_THAT(Fault(Small(4, {{"use_sliding_window", true}, {"max_window_layers", 2}})), HasSubstr("sliding_window"));
}

TEST(ModelShapeTest, TheLanguageModelOfAWrappedConfigIsRead) {
  json config = {{"model_type", "gemma3"},
                 {"torch_dtype", "bfloat16"},
                 {"text_config", Small(6, {{"model_type", "gemma3_text"}, {"sliding_window", 1024}})}};
  EXPECT_EQ(Spans(config), "wwwwwf");
  EXPECT_EQ(Parse(config).dtype, KvFormat::kBf16);
  config["text_config"]["torch_dtype"] = "float16";
  EXPECT_EQ(Parse(config).dtype, KvFormat::kF16);
  config["text_config"].erase("num_attention_heads");
  EXPECT_THAT(Fault(config), HasSubstr("text_config.num_attention_heads: missing"));
  config["text_config"] = 1;
  EXPECT_THAT(Fault(config), HasSubstr("text_config: not an object"));
}

TEST(ModelShapeTest, RefusalsNameFieldAndLimit) {
  const std::vector<std::pair<std::string, json>> refused = {
      {"num_hidden_layers", nullptr},
      {"num_hidden_layers", 0},
      {"num_hidden_layers", -1},
      {"num_hidden_layers", 1.5},
      {"num_hidden_layers", kMaxLayers + 1},
      {"num_attention_heads", nullptr},
      {"num_attention_heads", kMaxAttentionHeads + 1},
      {"num_attention_heads", 60},  // 8 do not divide it
      {"num_key_value_heads", 7},
      {"num_key_value_heads", {8, 4}},
      {"num_key_value_heads", 1000000000},
      {"hidden_size", nullptr},
      {"hidden_size", 8200},  // 64 heads do not divide it
      {"hidden_size", 64 * 12},
      {"hidden_size", 32768},  // head_dim 512
      {"head_dim", 12},
      {"head_dim", kMaxModelHeadDim + 8},
      {"head_dim", "128"},
      {"v_head_dim", 64},
      {"vocab_size", kMaxVocabSize + 1},
      {"max_position_embeddings", kMaxPositions + 1},
      {"max_position_embeddings", 18446744073709551615u},
      {"torch_dtype", "float8_e4m3fn"},
      {"dtype", 16},
      {"model_type", 3},
      {"sliding_window", 0},
      {"sliding_window", -4096},
      {"sliding_window", kMaxPositions + 1},
      {"use_sliding_window", 1},
      {"layer_types", "full_attention"},
      {"layer_types", {"full_attention"}},
      {"layer_types", std::vector<std::string>(80, "linear_attention")},
      {"layer_types", std::vector<int>(80, 1)},
      {"kv_lora_rank", 511},
      {"kv_lora_rank", kMaxLatentDim + 8},
      {"attention_chunk_size", 8192},
      {"num_kv_shared_layers", 10},
      {"multi_query", true},
      {"block_configs", {1}},
  };
  for (const auto& [field, value] : refused) {
    json config = Llama3();
    config[field] = value;
    const std::string fault = Fault(config);
    EXPECT_THAT(fault, StartsWith("config.json: ")) << field << " " << value;
    const bool by_hidden_size = field == "hidden_size" && !value.is_null();
    EXPECT_THAT(fault, HasSubstr(by_hidden_size ? "head" : field)) << field << " " << value;
  }
  json many = Llama3();
  many["num_hidden_layers"] = 513;
  EXPECT_EQ(Fault(many), "config.json: num_hidden_layers: not an integer from 1 to 512");
  json windowless = Llama3();
  windowless["layer_types"] = std::vector<std::string>(80, "sliding_attention");
  EXPECT_THAT(Fault(windowless), HasSubstr("sliding_window: no window"));
  json latent = Llama3();
  latent["kv_lora_rank"] = 512;
  EXPECT_THAT(Fault(latent), HasSubstr("qk_rope_head_dim: missing"));
  json pattern = Llama3();
  pattern.update({{"sliding_window", 8}, {"sliding_window_pattern", "LLLG"}});
  EXPECT_THAT(Fault(pattern), HasSubstr("sliding_window_pattern"));
}

TEST(ModelShapeTest, FieldsThatAreSwitchedOffAreAllowed) {
  json config = Llama3();
  config.update({{"attention_chunk_size", nullptr},
                 {"num_kv_shared_layers", 0},
                 {"multi_query", false},
                 {"block_configs", json::array()},
                 {"rope_scaling", {{"factor", 8.0}}}});
  EXPECT_EQ(Parse(config), Parse(Llama3()));
}

TEST(ModelShapeTest, WhatIsNoObjectIsRefused) {
  for (const char* text : {"", "{", "[]", "1", "null", "\xff", R"({"a": 1, "a": 2})"}) {
    const absl::Status status = ParseModelShape(text, "file").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), StartsWith("file: ")) << text;
  }
}

// Whatever happens to a config, it is refused, or every layer is in one group and all is within the limits.
TEST(ModelShapeTest, MutatedConfigsStayWithinLimits) {
  const std::string good = Small(6, {{"model_type", "gemma2"},
                                     {"sliding_window", 4096},
                                     {"num_key_value_heads", 1},
                                     {"use_sliding_window", nullptr},
                                     {"hidden_size", 64},
                                     {"max_window_layers", 3},
                                     {"sliding_window_pattern", 2},
                                     {"vocab_size", 1000}})
                               .dump();
  int parsed = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    std::string bad = good;
    for (uint32_t edits = 1 + random() % 3; edits > 0; --edits) {
      bad[random() % bad.size()] = static_cast<char>(random() % 4 == 0 ? random() : '0' + random() % 10);
    }
    const absl::StatusOr<ModelShape> shape = ParseModelShape(bad);
    if (!shape.ok()) {
      EXPECT_EQ(shape.status().code(), absl::StatusCode::kInvalidArgument) << "seed " << seed;
      continue;
    }
    ++parsed;
    std::vector<int> owners(static_cast<size_t>(shape->layers));
    for (size_t g = 0; g < shape->groups.size(); ++g) {
      EXPECT_EQ(shape->groups[g].window == 0, g == 0) << "seed " << seed;
      for (const int32_t layer : shape->groups[g].layers) ++owners.at(static_cast<size_t>(layer));
    }
    EXPECT_EQ(owners, std::vector<int>(owners.size(), 1)) << "seed " << seed;
    EXPECT_EQ(shape->heads % shape->kv_heads, 0) << "seed " << seed;
    EXPECT_LE(shape->head_dim, kMaxModelHeadDim) << "seed " << seed;
    EXPECT_EQ(shape->head_dim % 8, 0) << "seed " << seed;
  }
  EXPECT_GT(parsed, 30);
}

}  // namespace
}  // namespace kvmesh
