// The CUDA kernels on a device against the reference; skipped where there is none, absent without nvcc.
#ifdef KVMESH_HAVE_CUDA

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "kernels/cuda/append.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/check/checks.h"

namespace kvmesh::cuda {
namespace {

class GpuTest : public testing::TestWithParam<void (*)(const Report&)> {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(GpuTest, EqualsReference) {
  int checks = 0;
  GetParam()([&](const std::string& name, const std::string& fault) {
    ++checks;
    EXPECT_EQ(fault, "") << name;
  });
  EXPECT_GT(checks, 0);
}

INSTANTIATE_TEST_SUITE_P(Kernels, GpuTest,
                         testing::Values(&CheckRows, &CheckBlockBytes, &CheckStates, &CheckMla, &CheckAttention));

// Refused before anything is launched, so that no device is needed.
TEST(CudaArgumentsTest, BadShapesAreRefused) {
  KvPoolView pool;
  EXPECT_EQ(ReshapeAndCache({}, {}, {}, 0, pool, nullptr), cudaErrorInvalidValue);
  pool.layout = CanonicalLayout(KvFormat::kBf16, 1, 2, 16, 128);
  EXPECT_EQ(ReshapeAndCache({nullptr, 7}, {nullptr, 7}, {nullptr, 1}, 0, pool, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(ReshapeAndCache({}, {}, {}, 1, pool, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(ReshapeAndCache({}, {}, {}, 0, pool, nullptr), cudaSuccess);
  const auto attend = [&](const AttentionParams& params) {
    return PagedAttention({}, {}, {}, 0, params, pool, {}, {}, {}, nullptr);
  };
  EXPECT_EQ(attend({.q_heads = 4, .scale = 1}), cudaSuccess);
  EXPECT_EQ(attend({.q_heads = 3, .scale = 1}), cudaErrorInvalidValue);
  EXPECT_EQ(attend({.q_heads = 4, .scale = 1, .window = -1}), cudaErrorInvalidValue);
  pool.layout = CanonicalLayout(KvFormat::kBf16, 1, 2, 16, 264);
  EXPECT_EQ(attend({.q_heads = 4, .scale = 1}), cudaErrorInvalidValue);
  pool.layout = CanonicalMlaLayout(KvFormat::kBf16, 1, 16, 512, 64);
  EXPECT_EQ(attend({.q_heads = 4, .scale = 1}), cudaErrorInvalidValue);
}

TEST(CudaArgumentsTest, WorkspaceHoldsTheSpansOfSplitSequences) {
  // 3 sequences of up to 16 queries of 8 heads, 128 values and an lse for each of 2 spans.
  EXPECT_EQ(AttentionWorkspace(3, {100, 1024}, 8, 128, 0), int64_t{3} * 16 * 8 * 2 * 129 * 4);
  // A window of 512 touches two spans at most, however long the sequence is.
  EXPECT_EQ(AttentionWorkspace(1, {1, 1 << 20}, 1, 64, 512), int64_t{2} * 65 * 4);
}

}  // namespace
}  // namespace kvmesh::cuda

#endif  // KVMESH_HAVE_CUDA
