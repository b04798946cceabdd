#include "kvstore/base/status.h"

#include <gtest/gtest.h>

#include "kvstore/base/check.h"

namespace kvmesh {
namespace {

absl::Status Pass(const absl::Status& status, int& reached) {
  KVMESH_RETURN_IF_ERROR(status);
  ++reached;
  return absl::OkStatus();
}

absl::StatusOr<int> PassOr(const absl::Status& status) {
  KVMESH_RETURN_IF_ERROR(status);
  return 5;
}

TEST(StatusTest, ErrorIsPassedOnUnchanged) {
  int reached = 0;
  EXPECT_TRUE(Pass(absl::OkStatus(), reached).ok());
  EXPECT_EQ(reached, 1);
  EXPECT_EQ(Pass(absl::AbortedError("why"), reached), absl::AbortedError("why"));
  EXPECT_EQ(reached, 1);
  EXPECT_EQ(*PassOr(absl::OkStatus()), 5);
  EXPECT_EQ(PassOr(absl::NotFoundError("x")).status(), absl::NotFoundError("x"));
}

TEST(CheckDeathTest, FailureNamesConditionAndPlace) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const int n = 1;
  KVMESH_CHECK(n == 1, "fine");
  EXPECT_DEATH(KVMESH_CHECK(n == 2, "two is needed"), "status_test.cc:[0-9]+: check failed: n == 2: two is needed");
}

}  // namespace
}  // namespace kvmesh
