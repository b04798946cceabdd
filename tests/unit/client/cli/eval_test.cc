// Figures of quality against literal loops over the model's own logits, and the limits that formats keep on real text.
#include "client/cli/eval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kernels/kv_format.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/worker/model/group_runner.h"
#include "tests/unit/worker/model/tiny_model.h"

namespace kvmesh::testing {
namespace {

using nlohmann::json;
using ::testing::StartsWith;

constexpr uint32_t kSeed = 41;
constexpr size_t kVocab = 67;  // of the tiny model

std::string ReadWhole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<uint32_t> RandomText(size_t length) {
  std::mt19937 random(kSeed);
  std::vector<uint32_t> out(length);
  for (uint32_t& token : out) token = random() % kVocab;
  return out;
}

EvalResult MustEvaluate(const LlamaModel& model, std::span<const uint32_t> tokens, const EvalOptions& options) {
  const absl::StatusOr<EvalResult> result = Evaluate(model, tokens, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.value_or(EvalResult());
}

void ExpectSameBits(const EvalResult& a, const EvalResult& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.predicted, b.predicted);
  EXPECT_EQ(a.mean_nll, b.mean_nll);
  EXPECT_EQ(a.mean_nll_fp32, b.mean_nll_fp32);
  EXPECT_EQ(a.max_abs_logit_diff, b.max_abs_logit_diff);
}

// A tiny random model; its positions end at 256.
class EvalTest : public ::testing::Test {
 protected:
  void Write(const json& changes = json::object()) {
    json config = TinyConfig();
    config.update(changes);
    WriteFile(dir_ / "config.json", config.dump());
    WriteFile(dir_ / "model.safetensors", RandomSafetensors(TinyTensors(), kSeed));
    Load();
  }
  void Load() {
    absl::StatusOr<std::unique_ptr<LlamaModel>> model = LlamaModel::Load(dir_.path());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }
  // As Write, with every weight of the head set to `value`.
  void WriteHead(float value) {
    Write();
    std::string file = ReadWhole(dir_ / "model.safetensors");
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
    const json header = json::parse(file.substr(8, header_bytes));
    const json& range = header["lm_head.weight"]["data_offsets"];
    for (uint64_t at = range[0]; at < range[1]; at += sizeof(value)) {
      std::memcpy(file.data() + 8 + header_bytes + at, &value, sizeof(value));
    }
    WriteFile(dir_ / "model.safetensors", file);
    Load();
  }

  std::string Fault(std::span<const uint32_t> tokens, const EvalOptions& options) {
    const absl::Status status = Evaluate(*model_, tokens, options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }

  // The figures by their definition, window by window, from logits over pools of another block size.
  EvalResult Literal(const std::vector<uint32_t>& tokens, int64_t window, const EvalOptions& options) {
    EvalResult out{.tokens = tokens.size()};
    double nll = 0, nll_fp32 = 0;
    for (size_t begin = 0; begin < tokens.size(); begin += static_cast<size_t>(window)) {
      const size_t count = std::min(static_cast<size_t>(window), tokens.size() - begin);
      const auto part = std::span(tokens).subspan(begin, count);
      const auto length = static_cast<int64_t>(count);
      const std::vector<float> logits =
          GroupRunner(*model_, options.format, 8, length, length, options.policy).Next(part);
      const std::vector<float> fp32 =
          GroupRunner(*model_, KvFormat::kF32, 8, length, length, options.policy).Next(part);
      for (size_t i = 0; i < logits.size(); ++i) {
        out.max_abs_logit_diff = std::max(out.max_abs_logit_diff, std::abs(double{logits[i]} - double{fp32[i]}));
      }
      for (size_t t = 0; t + 1 < count; ++t) {
        double sum = 0, sum_fp32 = 0;
        for (size_t i = 0; i < kVocab; ++i) sum += std::exp(double{logits[t * kVocab + i]});
        for (size_t i = 0; i < kVocab; ++i) sum_fp32 += std::exp(double{fp32[t * kVocab + i]});
        nll -= std::log(std::exp(double{logits[t * kVocab + part[t + 1]]}) / sum);
        nll_fp32 -= std::log(std::exp(double{fp32[t * kVocab + part[t + 1]]}) / sum_fp32);
        ++out.predicted;
      }
    }
    out.mean_nll = nll / static_cast<double>(out.predicted);
    out.mean_nll_fp32 = nll_fp32 / static_cast<double>(out.predicted);
    return out;
  }

  void ExpectLiteral(const std::vector<uint32_t>& tokens, int64_t window, const EvalOptions& options) {
    const EvalResult got = MustEvaluate(*model_, tokens, options), want = Literal(tokens, window, options);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.predicted, want.predicted);
    EXPECT_NEAR(got.mean_nll, want.mean_nll, 1e-10) << "seed " << kSeed;
    EXPECT_NEAR(got.mean_nll_fp32, want.mean_nll_fp32, 1e-10) << "seed " << kSeed;
    EXPECT_EQ(got.max_abs_logit_diff, want.max_abs_logit_diff) << "seed " << kSeed;
  }

  TempDir dir_;
  std::unique_ptr<LlamaModel> model_;
};

TEST(NegativeLogLikelihoodTest, HandComputedAndStable) {
  EXPECT_DOUBLE_EQ(NegativeLogLikelihood(std::vector<float>{5, 5}, 1), std::log(2));
  EXPECT_NEAR(NegativeLogLikelihood(std::vector<float>{0, std::log(3.0f)}, 0), std::log(4), 1e-7);
  EXPECT_DOUBLE_EQ(NegativeLogLikelihood(std::vector<float>{10000, 0, -10000}, 2), 20000);
  EXPECT_DOUBLE_EQ(NegativeLogLikelihood(std::vector<float>{10000, 0, -10000}, 0), 0);
}

TEST_F(EvalTest, UniformModelCostsLnOfTheVocabulary) {
  WriteHead(0);
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kInt8}) {
    const EvalResult result = MustEvaluate(*model_, RandomText(30), {.format = format});
    EXPECT_EQ(result.tokens, 30u);
    EXPECT_EQ(result.predicted, 29u);
    EXPECT_NEAR(result.mean_nll, 4.204692619390966, 1e-12);  // ln 67
    EXPECT_NEAR(result.mean_nll_fp32, 4.204692619390966, 1e-12);
    EXPECT_EQ(result.max_abs_logit_diff, 0);
  }
}

class EvalFormatTest : public EvalTest, public ::testing::WithParamInterface<KvFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, EvalFormatTest, ::testing::ValuesIn(kKvFormats),
                         [](const auto& info) { return std::string(KvFormatName(info.param)); });

TEST_P(EvalFormatTest, FiguresAreThoseOfALiteralLoop) {
  Write();
  const std::vector<uint32_t> text = RandomText(300);
  const auto options = [](int64_t window, int64_t pass) {
    return EvalOptions{.format = GetParam(), .window_tokens = window, .pass_tokens = pass};
  };
  ExpectLiteral(text, 256, options(0, 256));
  ExpectLiteral(text, 100, options(100, 64));
  ExpectLiteral({text.begin(), text.begin() + 201}, 200, options(200, 256));  // the last window predicts nothing
  ExpectLiteral({text.begin(), text.begin() + 2}, 256, options(0, 1));
  if (GetParam() != KvFormat::kF32) {
    EXPECT_GT(MustEvaluate(*model_, text, options(0, 256)).max_abs_logit_diff, 0);
  } else {
    EXPECT_EQ(MustEvaluate(*model_, text, options(0, 256)).max_abs_logit_diff, 0);
  }
}

TEST_P(EvalFormatTest, PassesAndBlocksHaveNoInfluenceOnAnyBit) {
  Write();
  const std::vector<uint32_t> text = RandomText(200);
  const EvalResult whole = MustEvaluate(*model_, text, {.format = GetParam()});
  for (const auto& [pass, block_tokens] : {std::pair(1, 16), {7, 16}, {64, 8}, {199, 1}, {1000, 128}}) {
    SCOPED_TRACE(pass);
    ExpectSameBits(
        MustEvaluate(*model_, text, {.format = GetParam(), .block_tokens = block_tokens, .pass_tokens = pass}), whole);
  }
}

// Far beyond the model's positions, in the memory of the window.
TEST_P(EvalFormatTest, StreamsTheWholeText) {
  Write();
  const std::vector<uint32_t> text = RandomText(400);
  for (const StreamingPolicy policy : {StreamingPolicy{4, 36}, {0, 1}, {17, 16}, {4, 252}}) {
    for (const int64_t pass : {1, 16, 50, 256}) {
      SCOPED_TRACE(pass);
      ExpectLiteral(text, 400, {.format = GetParam(), .policy = policy, .pass_tokens = pass});
    }
  }
  ExpectLiteral(text, 90, {.format = GetParam(), .policy = {4, 36}, .window_tokens = 90});
}

TEST_P(EvalFormatTest, LayersWithWindowsOfTheirOwn) {
  Write({{"sliding_window", 18}, {"layer_types", {"sliding_attention", "full_attention", "sliding_attention"}}});
  for (const int64_t pass : {1, 30}) ExpectLiteral(RandomText(150), 256, {.format = GetParam(), .pass_tokens = pass});
}

TEST_F(EvalTest, ProgressEndsWithAllTokens) {
  Write();
  std::vector<size_t> seen;
  EvalOptions options{.window_tokens = 40, .pass_tokens = 30};
  options.progress = [&](size_t done, size_t all) {
    EXPECT_EQ(all, 100u);
    seen.push_back(done);
  };
  MustEvaluate(*model_, RandomText(100), options);
  EXPECT_EQ(seen, (std::vector<size_t>{30, 40, 70, 80, 100}));
}

TEST_F(EvalTest, FaultsNameTheFlagAndTheLimit) {
  Write();
  const std::vector<uint32_t> text = RandomText(20);
  EXPECT_THAT(Fault(std::span(text).first(1), {}), StartsWith("--tokens-file: fewer than 2"));
  EXPECT_EQ(Fault(std::vector<uint32_t>{1, 67}, {}), "--tokens-file: id 67 is outside the vocabulary of 67");
  EXPECT_EQ(Fault(text, {.window_tokens = 1}), "--window-tokens: 1, must be 2 to 256");
  EXPECT_THAT(Fault(text, {.window_tokens = 257}), StartsWith("--window-tokens: 257"));
  EXPECT_THAT(Fault(text, {.policy = {4, 253}}), StartsWith("--policy: sinks 4 and window 253"));
  EXPECT_THAT(Fault(text, {.format = KvFormat::kUnspecified}), StartsWith("--kv-format"));
  Write({{"sliding_window", 18}, {"layer_types", {"sliding_attention", "full_attention", "full_attention"}}});
  EXPECT_THAT(Fault(text, {.policy = {4, 16}}), StartsWith("--policy: the model has layers with a window"));
}

TEST_F(EvalTest, LogitsThatAreNotFiniteAreAnError) {
  WriteHead(INFINITY);
  EXPECT_TRUE(absl::IsInternal(Evaluate(*model_, RandomText(20), {}).status()));
}

// Texts that a trained model knows, with their likelihood as an independent float64 implementation has it.
struct TrainedText {
  std::unique_ptr<LlamaModel> model;
  std::vector<uint32_t> ids;
  int64_t window = 0;
  double mean_nll = 0;
};

// By how much each format raises the mean, as a ratio to fp32.
std::map<KvFormat, double> Raises(const TrainedText& text) {
  const auto evaluate = [&](KvFormat format) {
    return MustEvaluate(*text.model, text.ids, {.format = format, .window_tokens = text.window});
  };
  const EvalResult fp32 = evaluate(KvFormat::kF32);
  EXPECT_EQ(fp32.tokens, text.ids.size());
  EXPECT_NEAR(fp32.mean_nll, text.mean_nll, 1e-4);
  EXPECT_EQ(fp32.mean_nll, fp32.mean_nll_fp32);
  EXPECT_EQ(fp32.max_abs_logit_diff, 0);
  std::map<KvFormat, double> raises;
  for (const KvFormat format : kKvFormats) {
    if (format == KvFormat::kF32) continue;
    const EvalResult result = evaluate(format);
    EXPECT_EQ(result.mean_nll_fp32, fp32.mean_nll) << KvFormatName(format);
    EXPECT_GT(result.max_abs_logit_diff, 0) << KvFormatName(format);
    EXPECT_TRUE(std::isfinite(result.mean_nll)) << KvFormatName(format);
    raises[format] = result.mean_nll / result.mean_nll_fp32;
  }
  return raises;
}

// Rows of 8 elements, and a text that was chosen for its likelihood: fp8 and int8 cost more here than elsewhere, and
// the README says how much.
TEST(TrainedTextTest, SixteenBitsKeepTheirLimitOnStories260k) {
  const std::string dir = StoriesDir();
  if (dir.empty()) GTEST_SKIP() << "stories260k is not here";
  absl::StatusOr<std::unique_ptr<LlamaModel>> model = LlamaModel::Load(dir);
  ASSERT_TRUE(model.ok()) << model.status();
  const json golden = json::parse(ReadWhole(dir + "/golden.json"));
  TrainedText text{*std::move(model), golden["greedy_ids_from_bos"], 256, golden["mean_nll_of_greedy_ids"]};
  ASSERT_EQ(text.ids.size(), 256u);
  std::map<KvFormat, double> raises = Raises(text);
  EXPECT_LE(raises[KvFormat::kF16], 1.005);
  EXPECT_LE(raises[KvFormat::kBf16], 1.005);
}

TEST(TrainedTextTest, FormatsKeepTheirLimitsOnHeldOutText) {
  const std::string dir = ShippedDir();
  if (dir.empty()) GTEST_SKIP() << "deploy/model has no weights";
  absl::StatusOr<std::unique_ptr<LlamaModel>> model = LlamaModel::Load(dir);
  ASSERT_TRUE(model.ok()) << model.status();
  const json golden = json::parse(ReadWhole(dir + "/golden.json"));
  TrainedText text{*std::move(model), {}, golden["heldout_window_tokens"], golden["mean_nll"]};
  for (const char byte : ReadWhole(dir + "/heldout.txt").substr(0, 2048)) {
    text.ids.push_back(static_cast<unsigned char>(byte));
  }
  ASSERT_EQ(text.ids.size(), static_cast<size_t>(8 * text.window));
  std::map<KvFormat, double> raises = Raises(text);
  EXPECT_LE(raises[KvFormat::kF16], 1.005);
  EXPECT_LE(raises[KvFormat::kBf16], 1.005);
  EXPECT_LE(raises[KvFormat::kInt8], 1.005);
  EXPECT_LE(raises[KvFormat::kFp8E4m3], 1.02);
}

}  // namespace
}  // namespace kvmesh::testing
