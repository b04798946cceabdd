#include "worker/server/worker_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "kernels/kv_format.h"

namespace kvmesh {
namespace {

using testing::StartsWith;

WorkerOptions GoodOptions() {
  WorkerOptions options;
  options.worker_id = "worker-1";
  options.layout = CanonicalLayout(KvFormat::kF32, 1, 1, 16, 8);
  options.tls.insecure = true;
  return options;
}

TEST(WorkerOptionsTest, GoodOptionsPass) {
  EXPECT_TRUE(ValidateWorkerOptions(GoodOptions()).ok());
  WorkerOptions model = GoodOptions();
  model.layout = {};
  model.model_dir = "model";
  for (const KvFormat format : kKvFormats) {
    model.format = format;
    EXPECT_TRUE(ValidateWorkerOptions(model).ok()) << KvFormatName(format);
    WorkerOptions engine = GoodOptions();
    engine.format = format;
    engine.layout = CanonicalLayout(format, 1, 1, 16, 8);
    EXPECT_TRUE(ValidateWorkerOptions(engine).ok()) << KvFormatName(format);
  }
}

ModelShape Shape(const std::string& json) {
  const absl::StatusOr<ModelShape> shape = ParseModelShape(json);
  EXPECT_TRUE(shape.ok()) << shape.status();
  return shape.value_or(ModelShape());
}

// Two of four layers slide.
constexpr char kAlternating[] =
    R"({"model_type": "gpt_oss", "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 64, "sliding_window": 128})";
constexpr char kSliding[] =
    R"({"model_type": "mistral", "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 32,
        "sliding_window": 4096})";
constexpr char kLatent[] =
    R"({"num_hidden_layers": 2, "num_attention_heads": 8, "kv_lora_rank": 512, "qk_rope_head_dim": 64})";

// As --model-config gives it.
WorkerOptions EngineOptions(const std::string& json) {
  WorkerOptions options = GoodOptions();
  options.layout = {};
  options.engine_model = Shape(json);
  return options;
}

TEST(WorkerOptionsTest, AnEnginesModelHasAPoolForEachGroupOfItsLayers) {
  for (const KvFormat format : kKvFormats) {
    WorkerOptions options = EngineOptions(kAlternating);
    options.format = format;
    options.block_tokens = 8;
    EXPECT_TRUE(ValidateWorkerOptions(options).ok()) << KvFormatName(format);
    const std::vector<GroupPool> pools = EnginePools(options);
    ASSERT_EQ(pools.size(), 2u);
    EXPECT_EQ(pools[0].group, (LayerGroup{.window = 0, .layers = {1, 3}}));
    EXPECT_EQ(pools[1].group, (LayerGroup{.window = 128, .layers = {0, 2}}));
    for (const GroupPool& pool : pools) EXPECT_EQ(pool.layout, CanonicalLayout(format, 2, 2, 8, 64));
  }
  const std::vector<GroupPool> sliding = EnginePools(EngineOptions(kSliding));
  ASSERT_EQ(sliding.size(), 1u);
  EXPECT_EQ(sliding[0].group, (LayerGroup{.window = 4096, .layers = {0, 1, 2}}));
  EXPECT_EQ(sliding[0].layout, CanonicalLayout(KvFormat::kF32, 3, 4, 16, 32));
  WorkerOptions latent = EngineOptions(kLatent);
  latent.format = KvFormat::kBf16;
  EXPECT_TRUE(ValidateWorkerOptions(latent).ok());
  ASSERT_EQ(EnginePools(latent).size(), 1u);
  EXPECT_EQ(EnginePools(latent)[0].layout, CanonicalMlaLayout(KvFormat::kBf16, 2, 16, 512, 64));

  WorkerOptions flags = GoodOptions();
  flags.layout = CanonicalLayout(KvFormat::kF32, 3, 1, 16, 8);
  ASSERT_EQ(EnginePools(flags).size(), 1u);
  EXPECT_EQ(EnginePools(flags)[0].group, (LayerGroup{.window = 0, .layers = {0, 1, 2}}));
  EXPECT_EQ(EnginePools(flags)[0].layout, flags.layout);
}

TEST(WorkerOptionsTest, AnEnginesModelThatNoPoolTakesIsNamedByField) {
  const auto fault = [](const std::string& json, const std::function<void(WorkerOptions&)>& change) {
    WorkerOptions options = EngineOptions(json);
    change(options);
    const absl::Status status = ValidateWorkerOptions(options);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  const auto none = [](WorkerOptions&) {};
  EXPECT_THAT(fault(kAlternating, [](auto& o) { o.model_dir = "model"; }),
              StartsWith("--model-config: not with --model"));
  EXPECT_THAT(fault(kAlternating, [](auto& o) { o.layout = GoodOptions().layout; }),
              StartsWith("--model-config: not with --layers"));
  EXPECT_THAT(fault(R"({"num_hidden_layers": 2, "num_attention_heads": 8, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
                        "sliding_window": 32})",
                    none),
              StartsWith("--model-config: sliding_window: not supported with kv_lora_rank"));
  EXPECT_THAT(
      fault(R"({"num_hidden_layers": 2, "num_attention_heads": 8, "kv_lora_rank": 584, "qk_rope_head_dim": 64})", none),
      StartsWith("--model-config: kv_lora_rank: rows of 648 elements"));
  EXPECT_THAT(fault(kAlternating, [](auto& o) { o.format = KvFormat::kUnspecified; }), StartsWith("--kv-format"));
  // 60 layers, K and V of 8 heads of 256 in fp32, 128 tokens.
  EXPECT_THAT(fault(R"({"num_hidden_layers": 60, "num_attention_heads": 8, "head_dim": 256, "sliding_window": null})",
                    [](auto& o) { o.block_tokens = 128; }),
              StartsWith("--block-tokens: 128 make blocks of 125829120 bytes, the limit is 67108864"));
  EXPECT_THAT(fault(kSliding, [](auto& o) { o.disk_format = KvFormat::kUnspecified; }), StartsWith("--disk-format"));
}

TEST(WorkerOptionsTest, TiersBelowHaveThePoolsLayoutOrThatOfTheirFormat) {
  WorkerOptions options = GoodOptions();
  EXPECT_EQ(LayoutsBelow(options, options.layout)->host, options.layout);
  EXPECT_EQ(LayoutsBelow(options, options.layout)->disk, options.layout);
  options.host_format = KvFormat::kFp8E4m3;
  options.disk_format = KvFormat::kInt8;
  EXPECT_EQ(LayoutsBelow(options, options.layout)->host, CanonicalLayout(KvFormat::kFp8E4m3, 1, 1, 16, 8));
  EXPECT_EQ(LayoutsBelow(options, options.layout)->disk, CanonicalLayout(KvFormat::kInt8, 1, 1, 16, 8));
}

TEST(WorkerOptionsTest, EachFaultNamesItsOption) {
  const auto fault = [](const std::function<void(WorkerOptions&)>& change) {
    WorkerOptions options = GoodOptions();
    change(options);
    const absl::Status status = ValidateWorkerOptions(options);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(fault([](auto& o) { o.worker_id.clear(); }), StartsWith("--id"));
  EXPECT_THAT(fault([](auto& o) { o.worker_id.assign(129, 'w'); }), StartsWith("--id"));
  EXPECT_THAT(fault([](auto& o) { o.block_tokens = 0; }), StartsWith("--block-tokens"));
  EXPECT_THAT(fault([](auto& o) { o.block_tokens = 4097; }), StartsWith("--block-tokens"));
  EXPECT_THAT(fault([](auto& o) { o.format = KvFormat::kUnspecified; }), StartsWith("--kv-format"));
  EXPECT_THAT(fault([](auto& o) { o.layout = CanonicalLayout(o.format = KvFormat::kInt4, 1, 1, 16, 7); }),
              StartsWith("--head-dim: 7, must be even"));
  EXPECT_THAT(fault([](auto& o) { o.layout = {}; }), StartsWith("--model"));
  EXPECT_THAT(fault([](auto& o) { o.host_format = KvFormat::kUnspecified; }), StartsWith("--host-format: format"));
  EXPECT_THAT(fault([](auto& o) {
                o.layout = CanonicalLayout(KvFormat::kF32, 1, 1, 16, 7);
                o.disk_format = KvFormat::kInt4;
              }),
              StartsWith("--disk-format: int4: rows of 7"));
  EXPECT_THAT(fault([](auto& o) {
                o.layout = CanonicalLayout(KvFormat::kBf16, 64, 32, 64, 128);
                o.host_format = KvFormat::kF32;
              }),
              StartsWith("--host-format: blocks of 134217728 bytes, the limit"));
  const auto layout = [&](int32_t layers, int32_t kv_heads, int32_t head_dim) {
    return fault([=](auto& o) { o.layout = CanonicalLayout(KvFormat::kF32, layers, kv_heads, 16, head_dim); });
  };
  EXPECT_THAT(layout(65536, 1, 8), StartsWith("--layers"));
  EXPECT_THAT(layout(1, 65536, 8), StartsWith("--kv-heads"));
  EXPECT_THAT(layout(1, 1, 65537), StartsWith("--head-dim"));
  EXPECT_THAT(layout(64, 64, 256), StartsWith("--layers, --kv-heads"));    // 128 MiB
  EXPECT_THAT(layout(65535, 65535, 65536), StartsWith("--layers, --kv"));  // beyond 64 bits
  EXPECT_THAT(fault([](auto& o) { o.device_blocks = 0; }), StartsWith("--device-blocks"));
  EXPECT_THAT(fault([](auto& o) { o.threads = 0; }), StartsWith("--threads"));
  EXPECT_THAT(fault([](auto& o) { o.max_pinned_fraction = 0; }), StartsWith("--max-pinned-fraction"));
  EXPECT_THAT(fault([](auto& o) { o.max_pinned_fraction = kNan; }), StartsWith("--max-pinned-fraction"));
  EXPECT_THAT(fault([](auto& o) { o.max_pinned_fraction = 1.1; }), StartsWith("--max-pinned-fraction"));
  EXPECT_THAT(fault([](auto& o) { o.prefill_tokens_per_second = kNan; }), StartsWith("rates"));
  EXPECT_THAT(fault([](auto& o) { o.disk_bytes_per_second = 0; }), StartsWith("rates"));
  // Neither certificates nor the word that there are none.
  EXPECT_FALSE(fault([](auto& o) { o.tls.insecure = false; }).empty());
}

}  // namespace
}  // namespace kvmesh
