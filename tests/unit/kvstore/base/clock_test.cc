#include "kvstore/base/clock.h"

#include <gtest/gtest.h>

namespace kvmesh {
namespace {

TEST(ManualClockTest, MovesOnlyForwardAndOnlyWhenTold) {
  const absl::Time start = absl::FromUnixSeconds(100);
  ManualClock clock(start);
  EXPECT_EQ(clock.Now(), start);
  clock.AdvanceTo(start + absl::Seconds(5));
  EXPECT_EQ(clock.Now(), start + absl::Seconds(5));
  clock.AdvanceTo(start);
  EXPECT_EQ(clock.Now(), start + absl::Seconds(5));
}

TEST(RealClockTest, IsTheSystemsClock) {
  const absl::Time before = absl::Now();
  const absl::Time now = Clock::Real().Now();
  EXPECT_GE(now, before);
  EXPECT_LE(now, absl::Now());
}

}  // namespace
}  // namespace kvmesh
