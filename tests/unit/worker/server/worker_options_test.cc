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
