#include "worker/model/row_kernels.h"

#include <cmath>
#include <cstring>
#include <random>

#include "gtest/gtest.h"

namespace kvmesh {
namespace {

constexpr uint32_t kSeed = 20240611;

std::vector<float> RandomFloats(std::mt19937& random, int64_t count, float scale = 1) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& value : out) value = normal(random);
  return out;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Shape {
  int64_t columns, depth;
};
constexpr Shape kShapes[] = {{1, 1}, {8, 3}, {31, 17}, {64, 64}, {127, 65}, {352, 128}, {130, 352}};

class RowKernelsTest : public ::testing::TestWithParam<const RowKernels*> {
 protected:
  const RowKernels& kernels() { return *GetParam(); }
  std::mt19937 random_{kSeed};
};

INSTANTIATE_TEST_SUITE_P(All, RowKernelsTest, ::testing::ValuesIn(UsableRowKernels()),
                         [](const auto& info) { return info.param->name; });

TEST_P(RowKernelsTest, ProductIsCloseToDoublePrecision) {
  constexpr int64_t kRows = 14;
  for (const auto& [columns, depth] : kShapes) {
    const std::vector<float> weight = RandomFloats(random_, columns * depth), x = RandomFloats(random_, kRows * depth);
    const PackedMatrix packed = PackMatrix(kernels(), weight, columns, depth);
    std::vector<float> out(kRows * columns), sum(kRows * columns, 2.0f);
    kernels().multiply(packed, x.data(), kRows, out.data(), false);
    kernels().multiply(packed, x.data(), kRows, sum.data(), true);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t n = 0; n < columns; ++n) {
        double expected = 0;
        for (int64_t k = 0; k < depth; ++k) expected += double{x[r * depth + k]} * weight[n * depth + k];
        ASSERT_NEAR(out[r * columns + n], expected, 1e-4) << columns << "x" << depth << " row " << r << " column " << n;
        ASSERT_EQ(sum[r * columns + n], out[r * columns + n] + 2.0f);
      }
    }
  }
}

TEST_P(RowKernelsTest, ProductBitsDoNotDependOnTheCutOfTheRows) {
  constexpr int64_t kRows = 53;
  for (const auto& [columns, depth] : kShapes) {
    const PackedMatrix packed = PackMatrix(kernels(), RandomFloats(random_, columns * depth), columns, depth);
    const std::vector<float> x = RandomFloats(random_, kRows * depth);
    std::vector<float> whole(kRows * columns);
    kernels().multiply(packed, x.data(), kRows, whole.data(), false);
    for (int64_t piece = 1; piece <= 30; ++piece) {
      std::vector<float> cut(kRows * columns);
      for (int64_t r = 0; r < kRows; r += piece) {
        kernels().multiply(packed, x.data() + r * depth, std::min(piece, kRows - r), cut.data() + r * columns, false);
      }
      ASSERT_TRUE(SameBits(cut, whole)) << columns << "x" << depth << " in pieces of " << piece << " seed " << kSeed;
    }
  }
}

TEST_P(RowKernelsTest, NormIsCloseToDoublePrecision) {
  constexpr int64_t kRows = 3;
  constexpr float kEps = 1e-5f;
  for (const int64_t width : {1, 8, 15, 16, 17, 64, 100, 128}) {
    const std::vector<float> x = RandomFloats(random_, kRows * width), weight = RandomFloats(random_, width);
    std::vector<float> out(kRows * width);
    kernels().rms_norm(x.data(), weight.data(), kEps, kRows, width, out.data());
    for (int64_t r = 0; r < kRows; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < width; ++i) squares += double{x[r * width + i]} * x[r * width + i];
      const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + kEps);
      for (int64_t i = 0; i < width; ++i) {
        ASSERT_NEAR(out[r * width + i], x[r * width + i] * scale * weight[i], 1e-5) << "width " << width;
      }
    }
    std::vector<float> in_place = x;
    kernels().rms_norm(in_place.data(), weight.data(), kEps, kRows, width, in_place.data());
    EXPECT_TRUE(SameBits(in_place, out)) << "width " << width;
  }
}

TEST_P(RowKernelsTest, GatedActivationIsCloseToDoublePrecision) {
  std::vector<float> gate = {0.0f, -0.0f, 1e-30f, -1e-30f, 1.0f, -1.0f, 30.0f, -30.0f, 100.0f, -100.0f, 3e38f, -3e38f};
  for (const float value : RandomFloats(random_, 1001, 8)) gate.push_back(value);
  std::vector<float> up(gate.size(), 0.5f), out = gate;
  kernels().silu_multiply(out.data(), up.data(), static_cast<int64_t>(out.size()));
  for (size_t i = 0; i < gate.size(); ++i) {
    const double expected = gate[i] / (1 + std::exp(-double{gate[i]})) * 0.5;
    EXPECT_NEAR(out[i], expected, std::abs(expected) * 1e-6 + 1e-30) << "silu of " << gate[i];
  }
  std::vector<float> single = gate;
  for (float& value : single) kernels().silu_multiply(&value, up.data(), 1);
  EXPECT_TRUE(SameBits(single, out)) << "seed " << kSeed;
}

TEST(RowKernelSetsTest, SetsWithFusedMultiplyAddGiveTheSameBits) {
  std::vector<std::vector<float>> results;
  for (const RowKernels* kernels : UsableRowKernels()) {
    if (!kernels->fused) continue;
    std::mt19937 random(kSeed);
    std::vector<float>& out = results.emplace_back();
    for (const auto& [columns, depth] : kShapes) {
      constexpr int64_t kRows = 9;
      const PackedMatrix packed = PackMatrix(*kernels, RandomFloats(random, columns * depth), columns, depth);
      const std::vector<float> x = RandomFloats(random, kRows * depth), weight = RandomFloats(random, depth);
      const std::vector<float> up = RandomFloats(random, kRows * columns);
      std::vector<float> product(kRows * columns), norm(kRows * depth);
      kernels->multiply(packed, x.data(), kRows, product.data(), false);
      kernels->rms_norm(x.data(), weight.data(), 1e-5f, kRows, depth, norm.data());
      out.insert(out.end(), product.begin(), product.end());
      out.insert(out.end(), norm.begin(), norm.end());
      kernels->silu_multiply(product.data(), up.data(), kRows * columns);
      out.insert(out.end(), product.begin(), product.end());
    }
  }
  for (size_t i = 1; i < results.size(); ++i) EXPECT_TRUE(SameBits(results[i], results[0])) << "set " << i;
  EXPECT_FALSE(UsableRowKernels().empty());
}

}  // namespace
}  // namespace kvmesh
