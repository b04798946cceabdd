#include "kvstore/service/host_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvmesh {
namespace {

TEST(HostPortTest, ParsesNamesAndAddresses) {
  EXPECT_EQ(*ParseHostPort("127.0.0.1:80"), (HostPort{"127.0.0.1", 80}));
  EXPECT_EQ(*ParseHostPort("worker-0.kvmesh_x.svc:0"), (HostPort{"worker-0.kvmesh_x.svc", 0}));
  EXPECT_EQ(*ParseHostPort("[::]:65535"), (HostPort{"::", 65535}));
  EXPECT_EQ(*ParseHostPort("[fe80::1%eth0]:5"), (HostPort{"fe80::1%eth0", 5}));
}

TEST(HostPortTest, WritesWhatItParses) {
  for (const char* text : {"127.0.0.1:80", "[::1]:9", "host:0"}) EXPECT_EQ(ParseHostPort(text)->ToString(), text);
}

TEST(HostPortTest, WrongAddressesAreQuoted) {
  for (const char* text : {"",        ":",       "host",    "host:",    ":80",         "host:65536",     "host:-1",
                           "host:+1", "host: 1", "host:1 ", "host:80s", "::1:80",      "[]:80",          "[::1]",
                           "[::1:80", "::1]:80", "a b:80",  "a,b:80",   "host:123456", "host:80,host:81"}) {
    const absl::Status status = ParseHostPort(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(std::string("`") + text + "`"));
  }
}

}  // namespace
}  // namespace kvmesh
