#include "kvstore/service/grpc_status.h"

#include <gtest/gtest.h>

#include <string>

namespace kvmesh {
namespace {

TEST(GrpcStatusTest, EveryCodeKeepsItsNumberAndMessage) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status wire = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(wire.error_code()), code);
    EXPECT_EQ(wire.error_message(), "why");
    EXPECT_EQ(FromGrpcStatus(wire), status);
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(GrpcStatusTest, UnknownCodesBecomeUnknown) {
  for (int code : {-1, 17, 31}) {
    const absl::Status status = FromGrpcStatus(grpc::Status(static_cast<grpc::StatusCode>(code), "odd"));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
    EXPECT_EQ(status.message(), "odd");
  }
}

TEST(GrpcStatusTest, LongMessagesAreCut) {
  const grpc::Status wire = ToGrpcStatus(absl::InternalError(std::string(100'000, 'x')));
  EXPECT_EQ(wire.error_message().size(), kMaxStatusMessageBytes);
}

}  // namespace
}  // namespace kvmesh
