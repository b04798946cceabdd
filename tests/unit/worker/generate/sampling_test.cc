#include "worker/generate/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace kvmesh {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Probabilities of all ids, by the definition.
std::vector<double> LiteralProbabilities(const std::vector<float>& logits, const SamplingParams& params) {
  std::vector<size_t> order;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0 && order.size() > params.top_k) order.resize(params.top_k);
  std::vector<double> weight(logits.size(), 0.0);
  double total = 0;
  for (const size_t i : order) {
    total += weight[i] = std::exp((double{logits[i]} - double{logits[order[0]]}) / params.temperature);
  }
  if (params.top_p > 0) {
    double sum = 0;
    size_t kept = 0;
    while (kept < order.size() && (kept == 0 || sum < params.top_p * total)) sum += weight[order[kept++]];
    for (size_t i = kept; i < order.size(); ++i) weight[order[i]] = 0;
    total = sum;
  }
  for (double& each : weight) each /= total;
  return weight;
}

uint32_t LiteralSample(const std::vector<float>& logits, const SamplingParams& params, double uniform) {
  const std::vector<double> probabilities = LiteralProbabilities(logits, params);
  double sum = 0;
  uint32_t last = 0;
  for (uint32_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] == 0) continue;
    last = i;
    if ((sum += probabilities[i]) > uniform) return i;
  }
  return last;
}

std::vector<float> RandomLogits(std::mt19937_64& random, size_t size, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(size);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

TEST(SamplingTest, EqualsTheLiteralSampler) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<float> logits = RandomLogits(random, 1 + random() % 200, 3);
    // Equal logits and ones that are none.
    for (size_t i = 0; i < logits.size() / 8; ++i) logits[random() % logits.size()] = logits[random() % logits.size()];
    if (random() % 8 == 0) logits[random() % logits.size()] = kNan;
    if (random() % 8 == 0) logits[random() % logits.size()] = -kInfinity;
    if (std::all_of(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); })) logits[0] = 1;
    SamplingParams params{.temperature = 0.2 + static_cast<double>(random() % 30) / 10, .seed = random()};
    if (random() % 2 == 0) params.top_k = static_cast<uint32_t>(1 + random() % 250);
    if (random() % 2 == 0) params.top_p = static_cast<double>(1 + random() % 1000) / 1000;
    const auto sample = static_cast<uint32_t>(random() % 32);
    const uint64_t position = random() % 10000;
    ASSERT_EQ(SampleToken(logits, params, sample, position),
              LiteralSample(logits, params, UniformAt(params.seed, sample, position)))
        << "seed " << seed;
  }
}

// Chi-square of `counts` against `probabilities`, ids of probability 0 never counted.
double ChiSquare(const std::map<uint32_t, int>& counts, const std::vector<double>& probabilities, int draws) {
  double sum = 0;
  for (uint32_t i = 0; i < probabilities.size(); ++i) {
    const auto found = counts.find(i);
    const double seen = found == counts.end() ? 0 : found->second;
    if (probabilities[i] == 0) {
      EXPECT_EQ(seen, 0) << "id " << i;
      continue;
    }
    const double expected = probabilities[i] * draws;
    sum += (seen - expected) * (seen - expected) / expected;
  }
  return sum;
}

TEST(SamplingTest, DrawsHaveTheirProbabilities) {
  std::mt19937_64 random(5);
  const std::vector<float> logits = RandomLogits(random, 10, 1);
  constexpr int kDraws = 20000;
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 1, .seed = 1}, SamplingParams{.temperature = 0.5, .seed = 2},
        SamplingParams{.temperature = 2, .top_k = 4, .seed = 3},
        SamplingParams{.temperature = 1, .top_p = 0.8, .seed = 4},
        SamplingParams{.temperature = 1.5, .top_k = 7, .top_p = 0.7, .seed = 5}}) {
    const std::vector<double> probabilities = LiteralProbabilities(logits, params);
    std::map<uint32_t, int> by_position, by_sample, by_seed;
    for (int i = 0; i < kDraws; ++i) {
      const auto n = static_cast<uint32_t>(i);
      ++by_position[SampleToken(logits, params, 0, n)];
      ++by_sample[SampleToken(logits, params, n, 7)];
      SamplingParams other = params;
      other.seed = n;
      ++by_seed[SampleToken(logits, other, 0, 7)];
    }
    // With 9 degrees of freedom 33.7 is exceeded once in 10,000.
    EXPECT_LT(ChiSquare(by_position, probabilities, kDraws), 33.7) << "seed " << params.seed;
    EXPECT_LT(ChiSquare(by_sample, probabilities, kDraws), 33.7) << "seed " << params.seed;
    EXPECT_LT(ChiSquare(by_seed, probabilities, kDraws), 33.7) << "seed " << params.seed;
  }
}

TEST(SamplingTest, UniformNumbersAreKnownAndDiffer) {
  // By Python's integers, from SplitMix64's definition.
  EXPECT_EQ(UniformAt(0, 0, 0), 0.13870941014555427);
  EXPECT_EQ(UniformAt(0, 0, 1), 0.9711020828012883);
  EXPECT_EQ(UniformAt(0, 1, 0), 0.18383979100743952);
  EXPECT_EQ(UniformAt(1, 0, 0), 0.6935121390102292);
  EXPECT_EQ(UniformAt(~uint64_t{0}, 31, 1048575), 0.4260756619715995);
  std::set<double> seen;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (uint32_t sample = 0; sample < 20; ++sample) {
      for (uint64_t position = 0; position < 20; ++position) {
        const double number = UniformAt(seed, sample, position);
        EXPECT_GE(number, 0.0);
        EXPECT_LT(number, 1.0);
        seen.insert(number);
      }
    }
  }
  EXPECT_EQ(seen.size(), 8000u);
}

TEST(SamplingTest, TemperatureZeroAndTopKOneAreGreedy) {
  std::mt19937_64 random(9);
  for (int i = 0; i < 200; ++i) {
    const std::vector<float> logits = RandomLogits(random, 50, 2);
    const auto best = static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    const auto position = static_cast<uint64_t>(i);
    EXPECT_EQ(SampleToken(logits, {.top_k = 3, .top_p = 0.5, .seed = 8}, 1, position), best);
    EXPECT_EQ(SampleToken(logits, {.temperature = 5, .top_k = 1, .seed = 8}, 1, position), best);
    EXPECT_EQ(SampleToken(logits, {.temperature = 1, .top_p = 1e-9, .seed = 8}, 1, position), best);
    EXPECT_EQ(SampleToken(logits, {.temperature = 1e-300, .seed = 8}, 1, position), best);
  }
}

TEST(SamplingTest, LogitsThatAreNoNumbersAreNeverDrawn) {
  const SamplingParams params{.temperature = 100, .seed = 3};
  for (uint64_t position = 0; position < 200; ++position) {
    EXPECT_EQ(SampleToken(std::vector<float>{kNan, kNan}, params, 0, position), 0u);
    EXPECT_EQ(SampleToken(std::vector<float>{kNan, -kInfinity, 2.0f}, params, 0, position), 2u);
    EXPECT_EQ(SampleToken(std::vector<float>{1.0f, kInfinity, 2.0f}, params, 0, position), 1u);
    EXPECT_NE(SampleToken(std::vector<float>{1.0f, kNan, 1.0f}, params, 0, position), 1u);
  }
}

TEST(SamplingTest, ParametersAreBounded) {
  EXPECT_TRUE(CheckSampling({}).ok());
  EXPECT_TRUE(
      CheckSampling({.temperature = kMaxTemperature, .top_k = 0xffffffff, .top_p = 1, .seed = ~uint64_t{0}}).ok());
  for (const double bad : {-0.1, 100.1, std::nan(""), HUGE_VAL}) {
    EXPECT_THAT(CheckSampling({.temperature = bad}).ToString(), HasSubstr("temperature: "));
    EXPECT_TRUE(absl::IsInvalidArgument(CheckSampling({.temperature = bad})));
  }
  for (const double bad : {-0.1, 1.001, std::nan("")}) {
    EXPECT_THAT(CheckSampling({.temperature = 1, .top_p = bad}).ToString(), HasSubstr("top_p: "));
  }
}

}  // namespace
}  // namespace kvmesh
