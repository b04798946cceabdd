#include "worker/server/command_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvmesh {
namespace {

using testing::HasSubstr;

TEST(PinRefusalTest, EachReasonHasTheStatusThatSaysWhatToDoNext) {
  const auto code = [](MissReason reason) { return PinRefusal(reason, 2, 3).code(); };
  EXPECT_EQ(code(MissReason::kAbsent), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(MissReason::kLossy), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(MissReason::kPinLimit), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(MissReason::kPoolFull), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(MissReason::kDeadline), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(code(MissReason::kCorrupt), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code(MissReason::kIoError), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(PinRefusal(MissReason::kCorrupt, 2, 3).message()), HasSubstr("2 of 3 blocks"));
}

}  // namespace
}  // namespace kvmesh
