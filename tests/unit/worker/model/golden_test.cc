// Trained models give the answers that independent float64 implementations wrote down.
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "kernels/kv_format.h"
#include "nlohmann/json.hpp"
#include "tests/unit/worker/model/local_runner.h"
#include "worker/model/vocabulary.h"

namespace kvmesh::testing {
namespace {

using nlohmann::json;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Negative log-likelihood of `token`, in nats.
double Nll(std::span<const float> logits, uint32_t token) {
  double largest = -INFINITY, sum = 0;
  for (const float value : logits) largest = std::max(largest, double{value});
  for (const float value : logits) sum += std::exp(value - largest);
  return largest + std::log(sum) - logits[token];
}

// Mean over all tokens but the first, of one pass over `ids`.
double MeanNll(const LlamaModel& model, const std::vector<uint32_t>& ids) {
  const auto length = static_cast<int64_t>(ids.size());
  const PlainPool pool(model.config().CacheLayout(KvFormat::kF32, 16), (length + 15) / 16);
  LocalSequence sequence(pool.view(), 0, length);
  const Logits logits = MustForward(model, pool.view(), sequence.Next(ids, LogitsWanted::kAll));
  double sum = 0;
  for (int64_t i = 0; i + 1 < length; ++i) sum += Nll(logits.row(i), ids[static_cast<size_t>(i) + 1]);
  return sum / static_cast<double>(length - 1);
}

// A text resumed from cached blocks has the logits of its uncached run, bit for bit, in every format.
void ExpectCachedEqualsUncached(const LlamaModel& model, const std::vector<uint32_t>& ids) {
  const auto length = static_cast<int64_t>(ids.size()), blocks = (length + 15) / 16;
  const auto vocab = static_cast<size_t>(model.config().vocab_size);
  for (const KvFormat format : kKvFormats) {
    const PlainPool pool(model.config().CacheLayout(format, 16), 2 * blocks);
    LocalSequence uncached(pool.view(), 0, length);
    const Logits whole = MustForward(model, pool.view(), uncached.Next(ids, LogitsWanted::kAll));
    for (const int64_t cached : {int64_t{16}, length / 32 * 16, length - 16}) {
      std::vector<uint32_t> table = uncached.block_table();
      for (size_t i = static_cast<size_t>(cached) / 16; i < table.size(); ++i)
        table[i] += static_cast<uint32_t>(blocks);
      LocalSequence resumed(pool.view(), table);
      resumed.ResumeAt(cached);
      const auto from = static_cast<size_t>(cached);
      const Logits rest =
          MustForward(model, pool.view(), resumed.Next(std::span(ids).subspan(from), LogitsWanted::kAll));
      const std::span<const float> expected = std::span(whole.values).subspan(from * vocab);
      ASSERT_EQ(rest.values.size(), expected.size());
      EXPECT_EQ(std::memcmp(rest.values.data(), expected.data(), expected.size_bytes()), 0)
          << KvFormatName(format) << ", " << cached << " tokens cached";
    }
  }
}

void ExpectLogits(std::span<const float> logits, const json& golden) {
  ASSERT_EQ(logits.size(), golden.size());
  for (size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], golden[i].get<double>(), 1e-3) << "token " << i;
}

void ExpectVector(const PlainPool& pool, int64_t layer, int64_t kv, int64_t head, int64_t position,
                  const json& golden) {
  for (size_t i = 0; i < golden.size(); ++i) {
    EXPECT_NEAR(pool.Element(layer, kv, head, position, static_cast<int64_t>(i)), golden[i].get<double>(), 1e-3)
        << "layer " << layer << " kv " << kv << " position " << position << " element " << i;
  }
}

class StoriesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string dir = StoriesDir();
    if (dir.empty()) GTEST_SKIP() << "stories260k is not here";
    absl::StatusOr<std::unique_ptr<LlamaModel>> model = LlamaModel::Load(dir);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    golden_ = json::parse(ReadFile(dir + "/golden.json"));
    ids_ = golden_["greedy_ids_from_bos"].get<std::vector<uint32_t>>();
    dir_ = dir;
  }

  std::string dir_;
  std::unique_ptr<LlamaModel> model_;
  json golden_;
  std::vector<uint32_t> ids_;
};

TEST_F(StoriesTest, GreedyFromBosGivesTheGoldenIdsAndText) {
  const PlainPool pool(model_->config().CacheLayout(KvFormat::kF32, 16), 16);
  const std::vector<uint32_t> ids = GenerateGreedy(*model_, pool, {1}, ids_.size() - 1);
  EXPECT_EQ(ids, ids_);
  const absl::StatusOr<Vocabulary> vocabulary = Vocabulary::Load(dir_, model_->config().vocab_size);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  // The golden text joins pieces as they are spelled, with the space after BOS.
  const std::string text = absl::StrReplaceAll(golden_["text"].get<std::string>(), {{"<0x0A>", "\n"}});
  EXPECT_EQ(absl::StrCat(" ", vocabulary->Decode(ids)), text);
}

TEST_F(StoriesTest, LikelihoodLogitsKeysAndValuesAgree) {
  EXPECT_NEAR(MeanNll(*model_, ids_), golden_["mean_nll_of_greedy_ids"].get<double>(), 1e-4);
  const PlainPool pool(model_->config().CacheLayout(KvFormat::kF32, 16), 16);
  LocalSequence sequence(pool.view(), 0, 256);
  ExpectLogits(MustForward(*model_, pool.view(), sequence.Next(ids_)).row(0), golden_["last_logits"]);
  ExpectVector(pool, 0, 0, 0, 5, golden_["k_layer0_token5_head0"]);
  ExpectVector(pool, 4, 1, 3, 200, golden_["v_layer4_token200_head3"]);
}

TEST_F(StoriesTest, SixteenBitPoolStaysClose) {
  const PlainPool pool(model_->config().CacheLayout(KvFormat::kBf16, 16), 16);
  LocalSequence sequence(pool.view(), 0, 256);
  const Logits logits = MustForward(*model_, pool.view(), sequence.Next(ids_, LogitsWanted::kAll));
  double sum = 0;
  for (int64_t i = 0; i < 255; ++i) sum += Nll(logits.row(i), ids_[static_cast<size_t>(i) + 1]);
  EXPECT_NEAR(sum / 255, golden_["mean_nll_of_greedy_ids"].get<double>(), 0.02);
}

TEST_F(StoriesTest, CachedEqualsUncachedInEveryFormat) { ExpectCachedEqualsUncached(*model_, ids_); }

class ShippedModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string dir = ShippedDir();
    if (dir.empty()) GTEST_SKIP() << "deploy/model has no weights";
    absl::StatusOr<std::unique_ptr<LlamaModel>> model = LlamaModel::Load(dir);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    golden_ = json::parse(ReadFile(dir + "/golden.json"));
    heldout_ = ReadFile(dir + "/heldout.txt");
  }

  std::unique_ptr<LlamaModel> model_;
  json golden_;
  std::string heldout_;
};

TEST_F(ShippedModelTest, GreedyAfterThePromptGivesTheGoldenIdsAndVectors) {
  const auto prompt = golden_["prompt"].get<std::vector<uint32_t>>();
  const auto greedy = golden_["greedy_ids"].get<std::vector<uint32_t>>();
  EXPECT_EQ(Vocabulary::Bytes().Encode(golden_["prompt_text"].get<std::string>()), prompt);
  const PlainPool pool(model_->config().CacheLayout(KvFormat::kF32, 16), 16);
  const std::vector<uint32_t> ids = GenerateGreedy(*model_, pool, prompt, greedy.size());
  EXPECT_EQ(std::vector<uint32_t>(ids.begin() + static_cast<std::ptrdiff_t>(prompt.size()), ids.end()), greedy);
  EXPECT_EQ(Vocabulary::Bytes().Decode(greedy), golden_["greedy_text"].get<std::string>());
  for (const json& kv : golden_["kv"]) {
    ExpectVector(pool, kv["layer"], 0, kv["kv_head"], kv["position"], kv["key"]);
    ExpectVector(pool, kv["layer"], 1, kv["kv_head"], kv["position"], kv["value"]);
  }
}

TEST_F(ShippedModelTest, LogitsAfterThePromptAgree) {
  const auto prompt = golden_["prompt"].get<std::vector<uint32_t>>();
  const PlainPool pool(model_->config().CacheLayout(KvFormat::kF32, 16), 16);
  LocalSequence sequence(pool.view(), 0, static_cast<int64_t>(prompt.size()));
  ExpectLogits(MustForward(*model_, pool.view(), sequence.Next(prompt)).row(0), golden_["last_logits"]);
}

TEST_F(ShippedModelTest, HeldOutTextIsAsLikelyAsTheGoldenSays) {
  const auto window = golden_["heldout_window_tokens"].get<size_t>();
  for (size_t i = 0; i < golden_["window_nll"].size(); ++i) {
    ASSERT_LE((i + 1) * window, heldout_.size());
    const std::vector<uint32_t> ids = Vocabulary::Bytes().Encode(heldout_.substr(i * window, window));
    EXPECT_NEAR(MeanNll(*model_, ids), golden_["window_nll"][i].get<double>(), 1e-4) << "window " << i;
  }
}

TEST_F(ShippedModelTest, CachedEqualsUncachedInEveryFormat) {
  for (size_t i = 0; i < 8; ++i) {
    SCOPED_TRACE(i);
    ExpectCachedEqualsUncached(*model_, Vocabulary::Bytes().Encode(heldout_.substr(i * 256, 256)));
  }
}

}  // namespace
}  // namespace kvmesh::testing
