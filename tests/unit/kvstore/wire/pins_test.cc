#include "kvstore/wire/pins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvmesh {
namespace {

using testing::HasSubstr;

TEST(PinsTest, IdsAndTimesHaveLimits) {
  EXPECT_TRUE(CheckPinId("p").ok());
  EXPECT_TRUE(CheckPinId(std::string(128, 'p')).ok());
  EXPECT_THAT(CheckPinId("").ToString(), HasSubstr("INVALID_ARGUMENT: pin_id: 0 bytes, must be 1 to 128"));
  EXPECT_THAT(CheckPinId(std::string(129, 'p')).ToString(), HasSubstr("pin_id: 129 bytes, must be 1 to 128"));
  EXPECT_EQ(*PinTime(1), absl::Milliseconds(1));
  EXPECT_EQ(*PinTime(86'400'000), absl::Hours(24));
  for (const uint64_t ttl_ms : {uint64_t{0}, uint64_t{86'400'001}, ~uint64_t{0}}) {
    EXPECT_THAT(PinTime(ttl_ms).status().ToString(), HasSubstr("must be 1 to 86400000"));
  }
}

TEST(PinsTest, TenantsNeverShareAnId) {
  // The first 16 bytes of the tenant's SHA-256.
  EXPECT_EQ(PinIdOfTenant("abc", "p"), "ba7816bf8f01cfea414140de5dae2223:p");
  EXPECT_EQ(PinIdOfTenant("", "p"), "e3b0c44298fc1c149afbf4c8996fb924:p");
  EXPECT_EQ(PinIdOfTenant(std::nullopt, "p"), ":p");
  EXPECT_NE(PinIdOfTenant(std::nullopt, PinIdOfTenant("abc", "p")), PinIdOfTenant("abc", "p"));
}

TEST(PinsTest, WorkersTakeEveryIdOfATenant) {
  EXPECT_TRUE(CheckPinIdOfTenant(PinIdOfTenant("tenant", std::string(128, 'p'))).ok());
  EXPECT_TRUE(CheckPinIdOfTenant(PinIdOfTenant(std::nullopt, "p")).ok());
  EXPECT_EQ(CheckPinIdOfTenant("").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(CheckPinIdOfTenant(std::string(162, 'p')).ToString(), HasSubstr("pin_id: 162 bytes, must be 1 to 161"));
}

}  // namespace
}  // namespace kvmesh
