#include "kvstore/service/trace_context.h"

#include <gmock/gmock.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "echo_service.h"
#include "kvstore/service/grpc_server.h"

namespace kvmesh {
namespace {

using ::testing::HasSubstr;

constexpr char kTrace[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceParentTest, OnlyTheW3cFormIsValid) {
  EXPECT_TRUE(IsValidTraceParent(kTrace));
  EXPECT_TRUE(IsValidTraceParent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff"));
  EXPECT_TRUE(IsValidTraceParent("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
  EXPECT_TRUE(IsValidTraceParent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more"));
  for (const char* wrong : {
           "",
           "00",
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-011",
           "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more",
           "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-m\nore",
           "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
           "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
           "00-00000000000000000000000000000000-b7ad6b7169203331-01",
           "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
           "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01",
           "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
           "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
       }) {
    EXPECT_FALSE(IsValidTraceParent(wrong)) << wrong;
  }
}

class SlowCallLogTest : public ::testing::Test {
 protected:
  // Calls a handler that takes `took` by its clock and ends with `result`; returns what was logged.
  std::string LogOf(absl::Duration threshold, absl::Duration took, const absl::Status& result,
                    const std::function<void(grpc::ClientContext&)>& prepare) {
    ManualClock clock(absl::FromUnixSeconds(1000));
    EchoService service([&](grpc::ServerContext& context, const std::string&, std::string& out) {
      SlowCallLog call("worker", "Echo", context, threshold, clock);
      out = TraceParent(context);
      clock.AdvanceTo(clock.Now() + took);
      return FromGrpcStatus(call.Finish(result));
    });
    const auto server = GrpcServer::Start({"127.0.0.1:0", grpc::InsecureServerCredentials(), {&service}});
    const auto channel = MakeChannel(absl::StrCat("127.0.0.1:", (*server)->port()), grpc::InsecureChannelCredentials());
    testing::internal::CaptureStderr();
    EXPECT_EQ(CallEcho(*channel, "", seen_, std::chrono::seconds(20), prepare), result);
    (*server)->Shutdown(absl::ZeroDuration());
    return testing::internal::GetCapturedStderr();
  }

  std::string seen_;  // the traceparent that the handler saw, if the call was OK
};

TEST_F(SlowCallLogTest, SlowCallIsOneLineWithItsTrace) {
  const std::string log = LogOf(absl::Milliseconds(100), absl::Milliseconds(250), absl::NotFoundError("x"),
                                [](grpc::ClientContext& context) { context.AddMetadata("traceparent", kTrace); });
  EXPECT_THAT(log, HasSubstr(absl::StrCat(" level=warning component=worker msg=\"slow call\" method=Echo ms=250.000 "
                                          "status=NOT_FOUND traceparent=",
                                          kTrace, "\n")));
}

TEST_F(SlowCallLogTest, FastCallLogsNothing) {
  EXPECT_EQ(LogOf(absl::Milliseconds(100), absl::Milliseconds(99), absl::OkStatus(),
                  [](grpc::ClientContext& context) { context.AddMetadata("traceparent", kTrace); }),
            "");
  EXPECT_EQ(seen_, kTrace);
  EXPECT_EQ(LogOf(absl::InfiniteDuration(), absl::Hours(1), absl::OkStatus(), nullptr), "");
  EXPECT_EQ(seen_, "");
}

TEST_F(SlowCallLogTest, InvalidOrRepeatedTraceIsDropped) {
  LogOf(absl::InfiniteDuration(), absl::ZeroDuration(), absl::OkStatus(),
        [](grpc::ClientContext& context) { context.AddMetadata("traceparent", "00-zz-01 level=error"); });
  EXPECT_EQ(seen_, "");
  LogOf(absl::InfiniteDuration(), absl::ZeroDuration(), absl::OkStatus(), [](grpc::ClientContext& context) {
    context.AddMetadata("traceparent", kTrace);
    context.AddMetadata("traceparent", kTrace);
  });
  EXPECT_EQ(seen_, "");
}

}  // namespace
}  // namespace kvmesh
