// Sliding windows, learned sinks and bounded streaming against a literal model, over bounded memory.
#include <cstring>
#include <memory>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/worker/model/group_runner.h"
#include "tests/unit/worker/model/literal_llama.h"
#include "tests/unit/worker/model/tiny_model.h"

namespace kvmesh::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr uint32_t kSeed = 2203;
constexpr double kTolerance = 1e-3;  // of fp32 logits of size 1 to 10

// A folder with a tiny random model of some pattern of layers.
class PatternTest : public ::testing::Test {
 protected:
  void Write(const json& changes) {
    json config = TinyConfig();
    for (const auto& [name, value] : changes.items()) config[name] = value;
    std::vector<NamedTensor> tensors = TinyTensors();
    for (int layer = 0; layer < 3 && config.value("attention_sinks", false); ++layer) {
      tensors.push_back({"model.layers." + std::to_string(layer) + ".self_attn.sinks", {6}});
    }
    WriteFile(dir_ / "config.json", config.dump());
    WriteFile(dir_ / "model.safetensors", RandomSafetensors(tensors, kSeed));
    absl::StatusOr<std::unique_ptr<LlamaModel>> model = LlamaModel::Load(dir_.path(), {.threads = 2});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  std::vector<uint32_t> Prompt(int64_t length) {
    std::mt19937 random(kSeed);
    std::vector<uint32_t> out(static_cast<size_t>(length));
    for (uint32_t& token : out) token = random() % 67;
    return out;
  }

  // Logits of all positions, in passes of at most `pass` tokens.
  std::vector<float> Run(const std::vector<uint32_t>& tokens, int64_t pass, int32_t block_tokens,
                         const StreamingPolicy& policy = {}) {
    GroupRunner runner(*model_, KvFormat::kF32, block_tokens, static_cast<int64_t>(tokens.size()), pass, policy);
    std::vector<float> out;
    for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(pass)) {
      const size_t count = std::min(static_cast<size_t>(pass), tokens.size() - at);
      const std::vector<float> part = runner.Next(std::span(tokens).subspan(at, count));
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }

  // Against the literal model, and bit for bit over chunkings and block sizes.
  void ExpectLiteral(int64_t length, const StreamingPolicy& policy = {}) {
    const std::vector<uint32_t> tokens = Prompt(length);
    const LiteralLlama::Rows expected = LiteralLlama(dir_.path(), model_->config()).Logits(tokens, policy);
    const std::vector<float> got = Run(tokens, length, 16, policy);
    ASSERT_EQ(got.size(), tokens.size() * 67);
    for (size_t t = 0; t < tokens.size(); ++t) {
      for (size_t i = 0; i < 67; ++i) ASSERT_NEAR(got[t * 67 + i], expected[t][i], kTolerance) << "position " << t;
    }
    for (const auto& [pass, block_tokens] : {std::pair(1, 16), {7, 16}, {16, 16}, {33, 8}, {5, 1}}) {
      const std::vector<float> other = Run(tokens, pass, block_tokens, policy);
      ASSERT_EQ(other.size(), got.size());
      ASSERT_EQ(std::memcmp(other.data(), got.data(), got.size() * sizeof(float)), 0)
          << "passes of " << pass << ", blocks of " << block_tokens << ", seed " << kSeed;
    }
  }

  TempDir dir_;
  std::unique_ptr<LlamaModel> model_;
};

class WindowTest : public PatternTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Windows, WindowTest, ::testing::Values(1, 16, 17, 18, 33, 128, 129));

TEST_P(WindowTest, EveryLayerSlides) {
  Write({{"architectures", {"MistralForCausalLM"}}, {"model_type", "mistral"}, {"sliding_window", GetParam()}});
  ASSERT_EQ(model_->config().groups, (std::vector<LayerGroup>{{GetParam(), {0, 1, 2}}}));
  ExpectLiteral(150);
}

TEST_P(WindowTest, SomeLayersSlide) {
  Write(
      {{"sliding_window", GetParam()}, {"layer_types", {"sliding_attention", "full_attention", "sliding_attention"}}});
  ASSERT_EQ(model_->config().groups, (std::vector<LayerGroup>{{0, {1}}, {GetParam(), {0, 2}}}));
  ExpectLiteral(150);
}

TEST_P(WindowTest, LayersWithLearnedSinks) {
  Write({{"sliding_window", GetParam()},
         {"layer_types", {"sliding_attention", "full_attention", "sliding_attention"}},
         {"attention_sinks", true}});
  ExpectLiteral(150);
}

TEST_P(WindowTest, StreamsWithSinks) {
  Write({});
  for (const int64_t sinks : {0, 1, 4, 17}) {
    SCOPED_TRACE(sinks);
    ExpectLiteral(150, {.sinks = sinks, .window = GetParam()});
  }
}

// Ten times what the policy holds, beyond the positions that the model was trained for, in the memory of the window.
TEST_F(PatternTest, StreamsFarBeyondItsWindow) {
  Write({});
  ASSERT_EQ(model_->config().max_positions, 256);
  ExpectLiteral(400, {.sinks = 4, .window = 36});
}

// Streaming with learned sinks as well: they count once.
TEST_F(PatternTest, StreamsWithLearnedSinks) {
  Write({{"attention_sinks", true}});
  ExpectLiteral(100, {.sinks = 3, .window = 20});
}

TEST_F(PatternTest, LearnedSinksNeedTheirTensors) {
  Write({});
  json config = TinyConfig();
  config["attention_sinks"] = true;
  WriteFile(dir_ / "config.json", config.dump());
  const absl::Status status = LlamaModel::Load(dir_.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.layers.0.self_attn.sinks"));
}

TEST_F(PatternTest, PoliciesThatCannotBeAreRefusedByName) {
  Write({});
  const LlamaConfig full = model_->config();
  for (const StreamingPolicy bad : {StreamingPolicy{1, 0}, {-1, 8}, {0, -1}, {0, 257}, {257, 1}, {4, 253}}) {
    const absl::Status status = CheckStreamingPolicy(bad, full);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.sinks << "," << bad.window;
    EXPECT_THAT(std::string(status.message()), HasSubstr("policy"));
  }
  EXPECT_TRUE(CheckStreamingPolicy({4, 252}, full).ok());
  EXPECT_TRUE(CheckStreamingPolicy({}, full).ok());
  Write({{"sliding_window", 32}, {"layer_types", {"sliding_attention", "full_attention", "full_attention"}}});
  EXPECT_THAT(std::string(CheckStreamingPolicy({4, 16}, model_->config()).message()), HasSubstr("window of their own"));
}

}  // namespace
}  // namespace kvmesh::testing
