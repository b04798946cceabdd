#include "worker/model/greedy.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace kvmesh {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t Greedy(const std::vector<float>& logits) { return GreedyToken(logits); }

TEST(GreedyTest, TakesTheLargestAndTheLowestIdAmongEquals) {
  EXPECT_EQ(Greedy({-1.0f}), 0u);
  EXPECT_EQ(Greedy({-3.0f, 2.0f, 1.0f}), 1u);
  EXPECT_EQ(Greedy({1.0f, 5.0f, 5.0f}), 1u);
  EXPECT_EQ(Greedy({0.0f, -0.0f, 0.0f}), 0u);
}

TEST(GreedyTest, NeverTakesANan) {
  EXPECT_EQ(Greedy({kNan, -2.0f, 1.0f}), 2u);
  EXPECT_EQ(Greedy({-5.0f, kNan, -6.0f}), 0u);
  EXPECT_EQ(Greedy({kNan, kNan, -std::numeric_limits<float>::infinity()}), 2u);
  EXPECT_EQ(Greedy({kNan, kNan}), 0u);
}

}  // namespace
}  // namespace kvmesh
