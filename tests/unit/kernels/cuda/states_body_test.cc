#include "kernels/cuda/states_body.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "../random_pool.h"
#include "kernels/merge_states.h"
#include "simulated_machine.h"

namespace kvmesh::cuda {
namespace {

TEST(StatesBodyTest, MergeIsNearTheReference) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const size_t count = random() % 6, rows = 1 + random() % 9;
    const int32_t head_dim = static_cast<int32_t>(8 * (1 + random() % 20));
    std::vector<std::vector<float>> outs, lses;
    for (size_t i = 0; i < count; ++i) {
      outs.push_back(RandomFloats(rows * head_dim, random));
      lses.push_back(RandomFloats(rows, random, 5));
      for (float& lse : lses.back()) lse = random() % 3 == 0 ? kEmptyLse : lse;
    }
    std::vector<AttentionState> states;
    std::vector<DeviceState> device;
    for (size_t i = 0; i < count; ++i) {
      states.push_back({outs[i], lses[i]});
      device.push_back({outs[i].data(), lses[i].data()});
    }
    std::vector<float> want(rows * head_dim), want_lse(rows), got(want.size()), got_lse(rows);
    reference::MergeStates(states, head_dim, want, want_lse);
    const MergeArgs args = {
        device.data(), static_cast<int64_t>(count), static_cast<int64_t>(rows), head_dim, got.data(), got_lse.data()};
    Simulate(2, 1, 64, 0, seed, [&](Simulated& m) { MergeBody(m, args); });
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(want[i], got[i], 1e-5f * (1 + std::abs(want[i]))) << i;
    for (size_t i = 0; i < rows; ++i) {
      if (std::isinf(want_lse[i])) {
        ASSERT_EQ(want_lse[i], got_lse[i]);
      } else {
        ASSERT_NEAR(want_lse[i], got_lse[i], 1e-5f * (1 + std::abs(want_lse[i])));
      }
    }
  }
}

TEST(StatesBodyTest, OneStateKeepsItsBitsAndNanSpreadsOverItsRow) {
  const std::vector<float> out = {1.5f, -0.0f, 3e-40f, 7.0f}, empty = {9, 9, 9, 9};
  const std::vector<float> lse = {2.25f, std::nanf("")}, none = {kEmptyLse, kEmptyLse};
  const DeviceState states[] = {{empty.data(), none.data()}, {out.data(), lse.data()}};
  std::vector<float> got(4), got_lse(2);
  const MergeArgs args = {states, 2, 2, 2, got.data(), got_lse.data()};
  Simulate(1, 1, 32, 0, 1, [&](Simulated& m) { MergeBody(m, args); });
  EXPECT_EQ(std::memcmp(got.data(), out.data(), 2 * sizeof(float)), 0);
  EXPECT_EQ(got_lse[0], 2.25f);
  EXPECT_TRUE(std::isnan(got[2]) && std::isnan(got[3]) && std::isnan(got_lse[1]));
}

TEST(StatesBodyTest, RopeEqualsTheCpus) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const RopeParams params = {.theta = seed % 2 == 0 ? 10000.0 : 500000.0,
                               .rotary_dim = static_cast<int32_t>(2 * (1 + random() % 32)),
                               .interleaved = seed % 3 == 0};
    const int32_t heads = static_cast<int32_t>(1 + random() % 4), head_dim = 64;
    std::vector<int64_t> positions(1 + random() % 7);
    for (int64_t& p : positions) p = static_cast<int64_t>(random() % 100000);
    std::vector<float> want = RandomFloats(positions.size() * heads * head_dim, random), got = want;
    std::vector<double> frequencies;
    for (int i = 0; i < params.rotary_dim / 2; ++i) frequencies.push_back(1.0 / (1 + i));
    const bool given = seed % 4 == 0;
    (given ? RopeTable(params, frequencies, 0) : RopeTable(params, 0)).Apply(want, positions, heads, head_dim);
    const RopeArgs args = {got.data(),
                           positions.data(),
                           given ? frequencies.data() : nullptr,
                           static_cast<int64_t>(positions.size()),
                           heads,
                           head_dim,
                           params};
    Simulate(2, 1, 32, 0, seed, [&](Simulated& m) { RopeBody(m, args); });
    ASSERT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace kvmesh::cuda
