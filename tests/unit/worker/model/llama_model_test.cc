#include "worker/model/llama_model.h"

#include <filesystem>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/worker/model/local_runner.h"
#include "tests/unit/worker/model/tiny_model.h"

namespace kvmesh::testing {
namespace {

using ::testing::HasSubstr;

class LlamaModelTest : public ::testing::Test {
 protected:
  LlamaModelTest() { WriteTinyModel(dir_.path()); }

  std::string LoadError(const ModelOptions& options = {}) {
    const absl::Status status = LlamaModel::Load(dir_.path(), options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  TempDir dir_;
};

TEST_F(LlamaModelTest, LoadNamesWhatIsWrong) {
  EXPECT_THAT(LoadError({.threads = 0}), HasSubstr("threads"));
  EXPECT_THAT(LoadError({.threads = kMaxModelThreads + 1}), HasSubstr("threads"));
  std::vector<NamedTensor> tensors = TinyTensors();
  tensors.pop_back();
  WriteFile(dir_ / "model.safetensors", RandomSafetensors(tensors, 7));
  EXPECT_THAT(LoadError(), HasSubstr("no tensor model.layers.2.mlp.down_proj.weight"));
  nlohmann::json config = TinyConfig();
  config["num_hidden_layers"] = 2;
  config["num_attention_heads"] = 4;
  WriteFile(dir_ / "config.json", config.dump());
  EXPECT_THAT(LoadError(), HasSubstr("tensor model.layers.0.self_attn.q_proj.weight: shape"));
  config["hidden_act"] = "gelu";
  WriteFile(dir_ / "config.json", config.dump());
  EXPECT_THAT(LoadError(), HasSubstr("config.json: hidden_act"));
}

TEST_F(LlamaModelTest, MissingFilesAreNotFound) {
  std::filesystem::remove(dir_ / "model.safetensors");
  EXPECT_EQ(LlamaModel::Load(dir_.path()).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::remove(dir_ / "config.json");
  EXPECT_EQ(LlamaModel::Load(dir_.path()).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(LlamaModelTest, RevisionChangesWithWeightsAndConfig) {
  const std::string first = (*LlamaModel::Load(dir_.path()))->revision();
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ((*LlamaModel::Load(dir_.path(), {.threads = 2}))->revision(), first);
  WriteFile(dir_ / "model.safetensors", RandomSafetensors(TinyTensors(), 8));
  const std::string weights = (*LlamaModel::Load(dir_.path()))->revision();
  EXPECT_NE(weights, first);
  nlohmann::json config = TinyConfig();
  config["rope_theta"] = 20000.0;
  WriteFile(dir_ / "config.json", config.dump());
  EXPECT_NE((*LlamaModel::Load(dir_.path()))->revision(), weights);
}

// All sets of row kernels compute the same function.
TEST_F(LlamaModelTest, RowKernelSetsAgree) {
  const std::vector<uint32_t> prompt = {1, 5, 60, 33, 2, 8, 8, 19};
  std::vector<float> best;
  for (const RowKernels* kernels : UsableRowKernels()) {
    const auto model = LlamaModel::Load(dir_.path(), {.threads = 1, .kernels = kernels});
    ASSERT_TRUE(model.ok()) << model.status();
    const PlainPool pool((*model)->config().CacheLayout(KvFormat::kF32, 16), 1);
    LocalSequence sequence(pool.view(), 0, 8);
    const Logits logits = MustForward(**model, pool.view(), sequence.Next(prompt, LogitsWanted::kAll));
    if (best.empty()) best = logits.values;
    ASSERT_EQ(logits.values.size(), best.size());
    for (size_t i = 0; i < best.size(); ++i) ASSERT_NEAR(logits.values[i], best[i], 1e-4) << kernels->name;
  }
}

class ForwardCheckTest : public LlamaModelTest {
 protected:
  ForwardCheckTest()
      : model_(*LlamaModel::Load(dir_.path())), pool_(model_->config().CacheLayout(KvFormat::kF32, 4), 3) {}

  // Expects a refusal that names `what`, before anything is written.
  void ExpectRefused(const std::string& what, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const std::vector<std::byte> before = pool_.bytes();
    const absl::Status status = model_->Forward(std::span(&good_, 1), {&pool_.view(), 1}).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_EQ(pool_.bytes(), before);
  }

  std::unique_ptr<LlamaModel> model_;
  PlainPool pool_;
  std::vector<uint32_t> tokens_ = {3, 4, 5, 6, 7};
  std::vector<int64_t> slots_ = {8, 9, 10, 11, 0};
  std::vector<uint32_t> table_ = {2, 0};
  ForwardSequence good_ = {tokens_, 0, {{slots_, table_}}, LogitsWanted::kLast, {}};
};

TEST_F(ForwardCheckTest, GoodBatchesPass) {
  const absl::StatusOr<Logits> logits = model_->Forward(std::span(&good_, 1), {&pool_.view(), 1});
  ASSERT_TRUE(logits.ok()) << logits.status();
  EXPECT_EQ(logits->rows, 1);
  EXPECT_EQ(logits->row(0).size(), 67u);
  EXPECT_EQ(model_->Forward({}, {&pool_.view(), 1})->rows, 0);
}

TEST_F(ForwardCheckTest, BrokenSequencesAreRefusedByField) {
  const ForwardSequence good = good_;
  tokens_[4] = 67;
  ExpectRefused("sequence 0: tokens");
  tokens_[4] = 7;
  good_.tokens = {};
  ExpectRefused("tokens");
  good_ = good;
  good_.first_position = -1;
  ExpectRefused("first_position");
  good_.first_position = 252;
  ExpectRefused("first_position");
  good_.first_position = std::numeric_limits<int64_t>::max();
  ExpectRefused("first_position");
  good_ = good;
  good_.groups[0].slot_mapping = good.groups[0].slot_mapping.first(4);
  ExpectRefused("slot_mapping");
  good_ = good;
  slots_[1] = 10;
  ExpectRefused("slot_mapping");
  slots_[1] = -2;
  ExpectRefused("slot_mapping");
  slots_[1] = 9;
  good_.groups[0].block_table = good.groups[0].block_table.first(1);
  ExpectRefused("block_table");
  good_ = good;
  table_[1] = 3;
  ExpectRefused("block_table");
}

TEST_F(ForwardCheckTest, PoolsOfAnotherLayoutAreRefused) {
  BlockLayout layout = model_->config().CacheLayout(KvFormat::kF32, 4);
  layout.kv_heads = 1;
  const PlainPool other(layout, 3);
  EXPECT_THAT(std::string(model_->Forward(std::span(&good_, 1), {&other.view(), 1}).status().message()),
              HasSubstr("pool"));
}

TEST_F(ForwardCheckTest, LongBatchesAreRefusedByLimit) {
  const std::vector<ForwardSequence> batch(static_cast<size_t>(kMaxForwardTokens) / 5 + 1, good_);
  const absl::Status status = model_->Forward(batch, {&pool_.view(), 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

}  // namespace
}  // namespace kvmesh::testing
