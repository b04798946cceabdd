#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "random_pool.h"

namespace kvmesh {
namespace {

// The definition, in double.
std::vector<double> Rotate(const std::vector<float>& x, const std::vector<int64_t>& positions, int32_t heads,
                           int32_t head_dim, const RopeParams& params) {
  std::vector<double> out(x.begin(), x.end());
  for (size_t row = 0; row < positions.size() * heads; ++row) {
    for (int32_t i = 0; i < params.rotary_dim / 2; ++i) {
      const size_t a = row * head_dim + (params.interleaved ? 2 * i : i);
      const size_t b = row * head_dim + (params.interleaved ? 2 * i + 1 : i + params.rotary_dim / 2);
      const double angle = positions[row / heads] * std::pow(params.theta, -2.0 * i / params.rotary_dim);
      out[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
      out[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
    }
  }
  return out;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TEST(RopeTest, MatchesTheDefinition) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const int32_t heads = 1 + random() % 5;
    const int32_t head_dim = 8 * (1 + random() % 16);
    const RopeParams params{.theta = random() % 2 ? 10000.0 : 500000.0,
                            .rotary_dim = static_cast<int32_t>(2 * (1 + random() % (head_dim / 2))),
                            .interleaved = random() % 2 == 0};
    std::vector<int64_t> positions(random() % 20);
    for (int64_t& p : positions) p = static_cast<int64_t>(random() % (random() % 2 ? 10 : 1048576));
    const std::vector<float> before = RandomFloats(positions.size() * heads * head_dim, random);
    const std::vector<double> want = Rotate(before, positions, heads, head_dim, params);
    std::vector<float> got = before;
    ApplyRope(got, positions, heads, head_dim, params);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6 * (1 + std::abs(want[i])) * 4) << i;
  }
}

TEST(RopeTest, TableAndSplitGiveTheSameBits) {
  std::mt19937_64 random(1);
  const RopeParams params{.theta = 10000, .rotary_dim = 32};
  std::vector<int64_t> positions;
  for (int64_t p = 0; p < 300; ++p) positions.push_back(p);
  const std::vector<float> before = RandomFloats(300 * 4 * 48, random);
  std::vector<float> whole = before;
  ApplyRope(whole, positions, 4, 48, params);
  for (int64_t held : {0, 100, 1000}) {
    const RopeTable table(params, held);
    std::vector<float> split = before;
    for (size_t begin = 0; begin < positions.size();) {
      const size_t count = std::min<size_t>(1 + random() % 9, positions.size() - begin);
      table.Apply(std::span(split).subspan(begin * 4 * 48, count * 4 * 48), std::span(positions).subspan(begin, count),
                  4, 48);
      begin += count;
    }
    EXPECT_TRUE(SameBits(whole, split)) << held;
  }
}

TEST(RopeTest, PositionZeroAndTheTailStay) {
  std::mt19937_64 random(2);
  const std::vector<float> before = RandomFloats(2 * 16, random);
  std::vector<float> after = before;
  ApplyRope(after, std::vector<int64_t>{0, 9}, 1, 16, {.theta = 10000, .rotary_dim = 10});
  EXPECT_TRUE(SameBits(std::span(before).first(16), std::span(after).first(16)));
  EXPECT_FALSE(SameBits(std::span(before).subspan(16, 10), std::span(after).subspan(16, 10)));
  EXPECT_TRUE(SameBits(std::span(before).subspan(26), std::span(after).subspan(26)));
}

TEST(RopeTest, GivenFrequenciesReplaceTheta) {
  std::mt19937_64 random(3);
  const std::vector<float> before = RandomFloats(3 * 8, random);
  const std::vector<int64_t> positions = {1, 5, 900};
  std::vector<double> frequencies;
  for (int i = 0; i < 4; ++i) frequencies.push_back(std::pow(500.0, -2.0 * i / 8));
  std::vector<float> want = before, got = before;
  ApplyRope(want, positions, 1, 8, {.theta = 500, .rotary_dim = 8});
  RopeTable({.rotary_dim = 8}, frequencies, 10).Apply(got, positions, 1, 8);
  EXPECT_TRUE(SameBits(want, got));
}

TEST(RopeDeathTest, BrokenRequirementsAbort) {
  std::vector<float> x(8);
  const std::vector<int64_t> one = {1}, negative = {-1};
  EXPECT_DEATH(ApplyRope(x, one, 1, 8, {.rotary_dim = 7}), "rotary_dim");
  EXPECT_DEATH(ApplyRope(x, one, 1, 8, {.rotary_dim = 16}), "rotary_dim exceeds");
  EXPECT_DEATH(ApplyRope(x, negative, 1, 8, {.rotary_dim = 8}), "negative position");
  EXPECT_DEATH(ApplyRope(x, one, 2, 8, {.rotary_dim = 8}), "not \\[tokens");
}

}  // namespace
}  // namespace kvmesh
