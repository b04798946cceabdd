#include "client/cli/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "kernels/kv_format.h"
#include "kvstore/service/flags.h"
#include "tests/support/temp_dir.h"

namespace kvmesh {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

ModelShape Llama70B() {
  return {.model_type = "llama",
          .layers = 80,
          .heads = 64,
          .kv_heads = 8,
          .head_dim = 128,
          .groups = {{.window = 0, .layers = std::vector<int32_t>(80)}}};
}

ModelShape DeepSeekV3() {
  return {.layers = 61,
          .heads = 128,
          .kv_heads = 1,
          .head_dim = 576,
          .latent_dim = 512,
          .groups = {{.window = 0, .layers = std::vector<int32_t>(61)}}};
}

// 2 full layers and 4 with a window of 1024; a token takes 2 * 2 * 64 * 2 bytes per layer.
ModelShape Mixed() {
  return {.layers = 6,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 64,
          .groups = {{.window = 0, .layers = {2, 5}}, {.window = 1024, .layers = {0, 1, 3, 4}}}};
}

PlanOptions Bf16(int64_t context, int64_t sequences) {
  return {.format = KvFormat::kBf16, .context = context, .sequences = sequences};
}

Plan Make(const ModelShape& shape, const PlanOptions& options) {
  const absl::StatusOr<Plan> plan = MakePlan(shape, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.value_or(Plan());
}

std::string Fault(const ModelShape& shape, const PlanOptions& options) {
  const absl::Status status = MakePlan(shape, options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(PlanTest, Llama70BTakes327680BytesPerToken) {
  PlanOptions options = Bf16(8192, 32);
  options.memory = int64_t{80} << 30;
  const Plan plan = Make(Llama70B(), options);
  EXPECT_EQ(plan.total.bytes_per_token, 327680);
  EXPECT_EQ(plan.total.bytes_per_block, 5242880);
  EXPECT_EQ(plan.total.bytes_per_sequence, 2684354560);
  EXPECT_EQ(plan.total.total_bytes, 85899345920);
  EXPECT_EQ(plan.total.sequences_that_fit, 32);
  ASSERT_THAT(plan.groups, SizeIs(1));
  EXPECT_EQ(plan.groups[0].blocks_per_sequence, 512);
  --*options.memory;
  EXPECT_EQ(Make(Llama70B(), options).total.sequences_that_fit, 31);
}

TEST(PlanTest, DeepSeekV3Takes70272BytesPerToken) {
  PlanOptions options = Bf16(1, 1);
  EXPECT_EQ(Make(DeepSeekV3(), options).total.bytes_per_token, 70272);
  EXPECT_EQ(Make(DeepSeekV3(), options).total.bytes_per_sequence, 70272 * 16);
  options.block_tokens = 1;
  EXPECT_EQ(Make(DeepSeekV3(), options).total.bytes_per_sequence, 70272);
}

TEST(PlanTest, DescalesCount) {
  PlanOptions options = Bf16(16, 1);
  options.format = KvFormat::kInt8;  // a row of 128 bytes has one descale of 4
  EXPECT_EQ(Make(Llama70B(), options).total.bytes_per_token, 80 * 2 * 8 * (128 + 4));
  options.format = KvFormat::kInt4;  // a row of 64 bytes has four
  EXPECT_EQ(Make(Llama70B(), options).total.bytes_per_token, 80 * 2 * 8 * (64 + 16));
  options.format = KvFormat::kFp8E4m3;  // an MLA row of 576 bytes has nine
  EXPECT_EQ(Make(DeepSeekV3(), options).total.bytes_per_token, 61 * (576 + 36));
}

TEST(PlanTest, BytesOfAWindowStopGrowing) {
  ModelShape mistral = Llama70B();
  mistral.groups = {{.window = 0, .layers = {}}, {.window = 4096, .layers = std::vector<int32_t>(80)}};
  const auto bytes = [&](int64_t context) { return Make(mistral, Bf16(context, 1)).total.bytes_per_sequence; };
  EXPECT_EQ(bytes(2048), 128 * 5242880);
  EXPECT_EQ(bytes(4096), 256 * 5242880);
  EXPECT_EQ(bytes(4097), 257 * 5242880);
  EXPECT_EQ(bytes(32768), 257 * 5242880);
  EXPECT_EQ(bytes(1 << 20), 257 * 5242880);
  const Plan plan = Make(mistral, Bf16(1 << 20, 1));
  ASSERT_THAT(plan.groups, SizeIs(2));
  EXPECT_EQ(plan.groups[0].layers, 0);
  EXPECT_EQ(plan.groups[0].cost.bytes_per_sequence, 0);
  EXPECT_EQ(plan.groups[1].cost.bytes_per_sequence, plan.total.bytes_per_sequence);
}

TEST(PlanTest, TotalsAddUpOverGroups) {
  PlanOptions options = Bf16(16384, 3);
  options.memory = 100'000'000;
  const Plan plan = Make(Mixed(), options);
  ASSERT_THAT(plan.groups, SizeIs(2));
  EXPECT_EQ(plan.groups[0].cost.bytes_per_token, 2 * 512);
  EXPECT_EQ(plan.groups[1].cost.bytes_per_token, 4 * 512);
  EXPECT_EQ(plan.groups[0].cost.bytes_per_sequence, 16384 * 1024);
  EXPECT_EQ(plan.groups[1].blocks_per_sequence, 65);
  EXPECT_EQ(plan.groups[1].cost.bytes_per_sequence, 65 * 16 * 2048);
  EXPECT_EQ(plan.total.bytes_per_token, 6 * 512);
  EXPECT_EQ(plan.total.bytes_per_block, 16 * 6 * 512);
  EXPECT_EQ(plan.total.bytes_per_sequence, 16777216 + 2129920);
  EXPECT_EQ(plan.total.total_bytes, 3 * (16777216 + 2129920));
  EXPECT_EQ(plan.total.sequences_that_fit, 5);
  EXPECT_EQ(plan.groups[0].cost.sequences_that_fit, 5);
  EXPECT_EQ(plan.groups[1].cost.sequences_that_fit, 46);
}

// The blocks that are held while each position of a sequence is computed, one position at a time.
TEST(PlanTest, MostBlocksHeldIsTheMostThatAnyPositionNeeds) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const int64_t block = 1 + random() % 20;
    const int64_t window = seed % 5 == 0 ? 0 : 1 + random() % 70;
    const int64_t context = 1 + random() % 200;
    int64_t most = 0;         // for the position alone
    int64_t most_usable = 0;  // and what the end of the last full block needs as a boundary
    for (int64_t t = 0; t < context; ++t) {
      const auto first_held = [&](int64_t c) { return window == 0 ? 0 : std::max<int64_t>(0, c - window + 1); };
      std::set<int64_t> blocks = {t / block};
      for (int64_t p = first_held(t); p < t; ++p) blocks.insert(p / block);
      most = std::max(most, static_cast<int64_t>(blocks.size()));
      for (int64_t p = first_held(t / block * block); p < t; ++p) blocks.insert(p / block);
      most_usable = std::max(most_usable, static_cast<int64_t>(blocks.size()));
    }
    EXPECT_EQ(MostBlocksHeld(context, window, block), most) << "seed " << seed;
    EXPECT_EQ(most_usable, most) << "seed " << seed;
  }
  EXPECT_EQ(MostBlocksHeld(1 << 20, 16, 16), 2);
  EXPECT_EQ(MostBlocksHeld(1 << 20, 17, 16), 2);
  EXPECT_EQ(MostBlocksHeld(1 << 20, 18, 16), 3);
  EXPECT_EQ(MostBlocksHeld(1 << 20, 1, 16), 1);
}

TEST(PlanTest, ShardsDivideHeadsAndStoreTheRestAgain) {
  PlanOptions options = Bf16(4096, 2);
  const Plan one = Make(Llama70B(), options);
  EXPECT_EQ(one.copies, 1);
  for (const int32_t shards : {2, 4, 8}) {
    options.shards = shards;
    const Plan plan = Make(Llama70B(), options);
    EXPECT_EQ(plan.kv_heads_per_shard, 8 / shards);
    EXPECT_EQ(plan.copies, 1);
    EXPECT_EQ(plan.total.total_bytes, one.total.total_bytes);
  }
  for (const int32_t shards : {16, 32, 64}) {
    options.shards = shards;
    const Plan plan = Make(Llama70B(), options);
    EXPECT_EQ(plan.kv_heads_per_shard, 1);
    EXPECT_EQ(plan.copies, shards / 8);
    EXPECT_EQ(plan.total.bytes_per_token, one.total.bytes_per_token * shards / 8);
    EXPECT_EQ(plan.total.total_bytes, one.total.total_bytes * shards / 8);
  }
  options.shards = 8;
  EXPECT_EQ(Make(DeepSeekV3(), options).copies, 8);
  EXPECT_EQ(Make(DeepSeekV3(), options).total.bytes_per_token, 8 * 70272);
}

TEST(PlanTest, FaultsNameTheFlagAndTheLimit) {
  const auto fault = [](auto change) {
    PlanOptions options = Bf16(16, 1);
    change(options);
    return Fault(Llama70B(), options);
  };
  EXPECT_EQ(fault([](auto& o) { o.context = 0; }), "--context: 0, must be 1 to 2097152");
  EXPECT_THAT(fault([](auto& o) { o.context = kMaxPositions + 1; }), StartsWith("--context"));
  EXPECT_THAT(fault([](auto& o) { o.sequences = 0; }), StartsWith("--sequences"));
  EXPECT_THAT(fault([](auto& o) { o.sequences = kMaxPlanSequences + 1; }), StartsWith("--sequences"));
  EXPECT_THAT(fault([](auto& o) { o.block_tokens = 0; }), StartsWith("--block-tokens"));
  EXPECT_THAT(fault([](auto& o) { o.block_tokens = 4097; }), StartsWith("--block-tokens"));
  EXPECT_EQ(fault([](auto& o) { o.block_tokens = 4096; }),
            "--block-tokens: 4096 make blocks of 1342177280 bytes, must be at most 67108864");
  EXPECT_THAT(fault([](auto& o) { o.shards = 0; }), StartsWith("--tp"));
  EXPECT_THAT(fault([](auto& o) { o.shards = 3; }), HasSubstr("does not divide the model's 64 query heads"));
  EXPECT_THAT(fault([](auto& o) { o.shards = 128; }), StartsWith("--tp"));
  EXPECT_THAT(fault([](auto& o) { o.memory = 0; }), StartsWith("--memory"));
  EXPECT_THAT(fault([](auto& o) { o.format = KvFormat::kUnspecified; }), StartsWith("--kv-format"));
  EXPECT_THAT(fault([](auto& o) {
                o.context = kMaxPositions;
                o.sequences = kMaxPlanSequences;
                o.format = KvFormat::kF32;
                o.shards = 64;
              }),
              StartsWith("--sequences"));
  ModelShape odd = Llama70B();
  odd.heads = 48;
  odd.kv_heads = 6;
  PlanOptions options = Bf16(16, 1);
  options.shards = 4;
  EXPECT_THAT(Fault(odd, options), HasSubstr("neither divides the model's 6 K/V heads"));
}

// The command, from flags to output.
class PlanCommandTest : public testing::Test {
 protected:
  struct Outcome {
    absl::StatusOr<int> code;
    std::string out;
  };

  std::string Write(const json& config) {
    const std::string path = folder_ / "config.json";
    std::ofstream(path) << config;
    return path;
  }

  Outcome Run(std::vector<std::string> words) {
    CLI::App app;
    RunCommand run;
    AddPlanCommand(app, run);
    std::vector<const char*> argv = {"kvmesh", "plan"};
    for (const std::string& word : words) argv.push_back(word.c_str());
    std::ostringstream out;
    std::ostringstream err;
    if (const auto code = TryParseFlags(app, static_cast<int>(argv.size()), argv.data(), out, err)) {
      EXPECT_EQ(*code, kUsageExitCode);
      return {absl::InvalidArgumentError(err.str()), ""};
    }
    testing::internal::CaptureStdout();
    absl::StatusOr<int> code = run();
    return {std::move(code), testing::internal::GetCapturedStdout()};
  }

  TempDir folder_;
  json config_ = {{"model_type", "gemma3_text"},
                  {"num_hidden_layers", 26},
                  {"num_attention_heads", 4},
                  {"num_key_value_heads", 1},
                  {"head_dim", 256},
                  {"hidden_size", 1152},
                  {"sliding_window", 512},
                  {"sliding_window_pattern", 6},
                  {"torch_dtype", "bfloat16"}};
};

TEST_F(PlanCommandTest, JsonHasTotalsAndGroups) {
  const Outcome outcome =
      Run({"--model", Write(config_), "--context", "32768", "--sequences", "4", "--memory", "2GiB", "--json"});
  ASSERT_EQ(*outcome.code, 0);
  const json out = json::parse(outcome.out);
  EXPECT_EQ(out["kv_format"], "bf16");
  EXPECT_EQ(out["memory"], int64_t{2} << 30);
  EXPECT_EQ(out["bytes_per_token"], 26 * 1024);
  EXPECT_EQ(out["bytes_per_block"], 26 * 1024 * 16);
  const int64_t full = 4 * 1024 * 32768;
  const int64_t window = 22 * 1024 * 16 * 33;
  EXPECT_EQ(out["bytes_per_sequence"], full + window);
  EXPECT_EQ(out["total_bytes"], 4 * (full + window));
  EXPECT_EQ(out["sequences_that_fit"], (int64_t{2} << 30) / (full + window));
  ASSERT_THAT(out["groups"], SizeIs(2));
  EXPECT_EQ(out["groups"][0]["attention"], "full");
  EXPECT_EQ(out["groups"][1]["attention"], "window(512)");
  EXPECT_EQ(out["groups"][1]["blocks_per_sequence"], 33);
  EXPECT_EQ(out["groups"][1]["bytes_per_sequence"], window);
}

TEST_F(PlanCommandTest, WithoutMemoryNothingFitsOrFails) {
  const Outcome outcome = Run({"--model", Write(config_), "--context", "8", "--sequences", "1", "--kv-format", "int8",
                               "--tp", "2", "--block-tokens", "8", "--json"});
  ASSERT_EQ(*outcome.code, 0);
  const json out = json::parse(outcome.out);
  EXPECT_EQ(out["kv_format"], "int8");
  EXPECT_TRUE(out["sequences_that_fit"].is_null());
  EXPECT_EQ(out["copies"], 2);
  EXPECT_EQ(out["bytes_per_token"], 2 * 26 * 2 * 260);
}

TEST_F(PlanCommandTest, TextSaysHowShardsShare) {
  const std::vector<std::string> words = {"--model", Write(config_), "--context", "8", "--sequences", "1", "--tp", "2"};
  EXPECT_THAT(Run(words).out, HasSubstr("2 shards of 1 out of 1 K/V heads, each head stored 2 times"));
  config_.update({{"kv_lora_rank", 512}, {"qk_rope_head_dim", 64}});
  Write(config_);
  EXPECT_THAT(Run(words).out, HasSubstr("2 shards, each with a copy of the whole MLA state"));
}

TEST_F(PlanCommandTest, WrongUsageNamesTheFlagInOneLine) {
  const std::string model = Write(config_);
  const auto fault = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--model", model, "--context", "8", "--sequences", "1"};
    words.insert(words.end(), more.begin(), more.end());
    const absl::Status status = Run(words).code.status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    const std::string line(status.message());
    EXPECT_EQ(line.substr(0, line.size() - 1).find('\n'), std::string::npos) << line;
    return line;
  };
  EXPECT_THAT(fault({"--kv-format", "FP8"}), HasSubstr("--kv-format: \"FP8\""));
  EXPECT_THAT(fault({"--tp", "x"}), HasSubstr("--tp"));
  EXPECT_THAT(fault({"--tp", "3"}), HasSubstr("--tp: 3"));
  for (const char* memory : {"-1", "80Gig", "1.5", "", "99999999999999999999", "99999999PiB", "16EiB", "8EiB", "0"}) {
    EXPECT_THAT(fault({"--memory", memory}), HasSubstr("--memory")) << memory;
  }
  EXPECT_THAT(Run({"--model", model, "--context", "8"}).code.status().ToString(), HasSubstr("--sequences"));
  EXPECT_THAT(Run({"--context", "8", "--sequences", "1"}).code.status().ToString(), HasSubstr("--model"));
  const std::string none = folder_ / "none";
  EXPECT_THAT(Run({"--model", none, "--context", "8", "--sequences", "1"}).code.status().ToString(),
              HasSubstr("--model: cannot read " + none));
  config_["num_key_value_heads"] = 3;
  Write(config_);
  EXPECT_THAT(fault({}), HasSubstr("--model: " + model + ": num_key_value_heads: 3 does not divide"));
}

}  // namespace
}  // namespace kvmesh
