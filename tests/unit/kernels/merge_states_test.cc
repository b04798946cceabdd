#include "kernels/merge_states.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/reference/reference.h"
#include "random_pool.h"

namespace kvmesh {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

struct State {
  State(size_t rows, int32_t head_dim) : out(rows * head_dim, 0.0f), lse(rows, kEmpty) {}
  AttentionState view() const { return {out, lse}; }

  std::vector<float> out;
  std::vector<float> lse;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ExpectNear(const State& want, const State& got, float tolerance) {
  for (size_t i = 0; i < want.out.size(); ++i) {
    ASSERT_NEAR(want.out[i], got.out[i], tolerance * (1 + std::abs(want.out[i]))) << "element " << i;
  }
  for (size_t i = 0; i < want.lse.size(); ++i) {
    if (want.lse[i] == kEmpty) {
      ASSERT_EQ(got.lse[i], kEmpty) << "row " << i;
    } else {
      ASSERT_NEAR(want.lse[i], got.lse[i], tolerance * (1 + std::abs(want.lse[i]))) << "row " << i;
    }
  }
}

// Scores and values of some keys, and attention over any set of them in double.
struct Keys {
  Keys(size_t rows, size_t keys, int32_t head_dim, float deviation, std::mt19937_64& random)
      : rows(rows),
        keys(keys),
        head_dim(head_dim),
        scores(RandomFloats(rows * keys, random, deviation)),
        values(RandomFloats(rows * keys * head_dim, random)) {}

  // owner: [rows, keys]; a key is in the set when its owner is `who`, or when who is -1.
  State Attend(const std::vector<int>& owner, int who) const {
    State out(rows, head_dim);
    for (size_t row = 0; row < rows; ++row) {
      double sum = 0;
      std::vector<double> acc(head_dim, 0.0);
      for (size_t k = 0; k < keys; ++k) {
        if (who >= 0 && owner[row * keys + k] != who) continue;
        const double weight = std::exp(double{scores[row * keys + k]});
        sum += weight;
        for (int32_t d = 0; d < head_dim; ++d) acc[d] += weight * values[(row * keys + k) * head_dim + d];
      }
      if (sum == 0) continue;
      for (int32_t d = 0; d < head_dim; ++d) out.out[row * head_dim + d] = static_cast<float>(acc[d] / sum);
      out.lse[row] = static_cast<float>(std::log(sum));
    }
    return out;
  }

  size_t rows;
  size_t keys;
  int32_t head_dim;
  std::vector<float> scores;
  std::vector<float> values;
};

State Merge(const std::vector<State>& states, size_t rows, int32_t head_dim) {
  std::vector<AttentionState> views;
  for (const State& s : states) views.push_back(s.view());
  State out(rows, head_dim);
  MergeStates(views, head_dim, out.out, out.lse);
  return out;
}

// Merges the states [begin, end) two at a time, along a random tree.
State MergeTree(const std::vector<State>& states, size_t begin, size_t end, int32_t head_dim, std::mt19937_64& random) {
  if (end - begin == 1) return states[begin];
  const size_t middle = begin + 1 + random() % (end - begin - 1);
  const State a = MergeTree(states, begin, middle, head_dim, random);
  const State b = MergeTree(states, middle, end, head_dim, random);
  State out(a.lse.size(), head_dim);
  MergeStates(a.view(), b.view(), head_dim, out.out, out.lse);
  return out;
}

TEST(MergeStatesTest, AnySplitInAnyGroupingEqualsTheWhole) {
  const int32_t head_dims[] = {1, 8, 63, 64, 80, 128, 256, 512};
  const float deviations[] = {0.1f, 3.0f, 30.0f};
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const int32_t head_dim = head_dims[random() % 8];
    const size_t rows = 1 + random() % 6;
    const Keys keys(rows, random() % 40, head_dim, deviations[random() % 3], random);
    const int parts = static_cast<int>(1 + random() % 9);
    std::vector<int> owner(rows * keys.keys);
    for (int& who : owner) who = static_cast<int>(random() % parts);
    const State whole = keys.Attend(owner, -1);
    std::vector<State> states;
    for (int who = 0; who < parts; ++who) states.push_back(keys.Attend(owner, who));  // some rows are empty
    ExpectNear(whole, Merge(states, rows, head_dim), 2e-6f);
    ExpectNear(whole, MergeTree(states, 0, states.size(), head_dim, random), 5e-6f);
    if (HasFatalFailure()) return;
  }
}

TEST(MergeStatesTest, MatchesReferenceOverTheRangeOfLse) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    constexpr size_t kRows = 5;
    const int32_t head_dim = static_cast<int32_t>(1 + random() % 300);
    std::vector<State> states;
    std::vector<AttentionState> views;
    const float stretch = seed % 2 == 0 ? 1.0f : 1e4f;  // far apart: all weight on one state, none overflows
    for (uint64_t n = random() % 6; n > 0; --n) {
      states.emplace_back(kRows, head_dim);
      states.back().out = RandomFloats(kRows * head_dim, random, 10);
      states.back().lse = RandomFloats(kRows, random, stretch);
      if (random() % 3 == 0) states.back().lse[random() % kRows] = kEmpty;
    }
    for (const State& s : states) views.push_back(s.view());
    State want(kRows, head_dim), got(kRows, head_dim);
    reference::MergeStates(views, head_dim, want.out, want.lse);
    MergeStates(views, head_dim, got.out, got.lse);
    ExpectNear(want, got, 2e-6f);
    if (HasFatalFailure()) return;
  }
}

TEST(MergeStatesTest, TheEmptyStateIsTheIdentityBitForBit) {
  std::mt19937_64 random(7);
  constexpr int32_t kHeadDim = 80;
  constexpr size_t kRows = 6;
  State state(kRows, kHeadDim);
  state.out = RandomFloats(kRows * kHeadDim, random);
  state.lse = RandomFloats(kRows, random, 20);
  state.out[3] = -0.0f;
  state.out[4] = std::numeric_limits<float>::denorm_min();
  const State empty(kRows, kHeadDim);
  State unwritten(kRows, kHeadDim);  // what an empty row holds is never read
  std::fill(unwritten.out.begin(), unwritten.out.end(), std::numeric_limits<float>::quiet_NaN());
  for (const State* other : {&empty, static_cast<const State*>(&unwritten)}) {
    for (const auto& states : {std::vector<State>{state, *other}, std::vector<State>{*other, state},
                               std::vector<State>{*other, *other, state, *other}, std::vector<State>{state}}) {
      const State merged = Merge(states, kRows, kHeadDim);
      EXPECT_TRUE(SameBits(merged.out, state.out));
      EXPECT_TRUE(SameBits(merged.lse, state.lse));
    }
  }
  for (const auto& states : {std::vector<State>{}, std::vector<State>{unwritten}, std::vector<State>{empty, empty}}) {
    const State merged = Merge(states, kRows, kHeadDim);
    EXPECT_TRUE(SameBits(merged.out, empty.out));
    EXPECT_TRUE(SameBits(merged.lse, empty.lse));
  }
}

TEST(MergeStatesTest, TheResultMayReplaceAState) {
  std::mt19937_64 random(8);
  constexpr int32_t kHeadDim = 100;
  constexpr size_t kRows = 4;
  std::vector<State> states(3, State(kRows, kHeadDim));
  for (State& s : states) {
    s.out = RandomFloats(kRows * kHeadDim, random);
    s.lse = RandomFloats(kRows, random);
  }
  const State want = Merge(states, kRows, kHeadDim);
  for (size_t replaced = 0; replaced < states.size(); ++replaced) {
    std::vector<State> copy = states;
    const std::vector<AttentionState> views = {copy[0].view(), copy[1].view(), copy[2].view()};
    MergeStates(views, kHeadDim, copy[replaced].out, copy[replaced].lse);
    EXPECT_TRUE(SameBits(copy[replaced].out, want.out)) << replaced;
    EXPECT_TRUE(SameBits(copy[replaced].lse, want.lse)) << replaced;
  }
}

TEST(MergeStatesTest, LseIsOptionalAndNanInItShows) {
  State a(2, 4), b(2, 4);
  a.lse = {1.0f, std::numeric_limits<float>::quiet_NaN()};
  a.out.assign(8, 1.0f);
  std::vector<float> out(8);
  MergeStates(a.view(), b.view(), 4, out, {});
  for (int d = 0; d < 4; ++d) EXPECT_EQ(out[d], 1.0f);
  for (int d = 4; d < 8; ++d) EXPECT_TRUE(std::isnan(out[d]));
}

TEST(MergeStatesDeathTest, BrokenRequirementsAbort) {
  const State a(2, 4), b(3, 4);
  std::vector<float> out(8), lse(2);
  EXPECT_DEATH(MergeStates(a.view(), b.view(), 4, out, lse), "another shape");
  EXPECT_DEATH(MergeStates(a.view(), a.view(), 0, out, lse), "out is not");
  EXPECT_DEATH(MergeStates(a.view(), a.view(), 4, out, std::span(lse).first(1)), "lse is not");
}

}  // namespace
}  // namespace kvmesh
