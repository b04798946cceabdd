#include "kvstore/service/grpc_server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "echo_service.h"
#include "kvstore/base/mutex.h"

namespace kvmesh {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

EchoService::Handler Echo() {
  return [](grpc::ServerContext&, const std::string& in, std::string& out) {
    out = in;
    return absl::OkStatus();
  };
}

class GrpcServerTest : public ::testing::Test {
 protected:
  std::unique_ptr<GrpcServer> StartWith(EchoService& service, const std::string& address = "127.0.0.1:0",
                                        int max_threads = 256) {
    auto server = GrpcServer::Start({address, grpc::InsecureServerCredentials(), {&service}, max_threads});
    EXPECT_TRUE(server.ok()) << server.status();
    return server.ok() ? *std::move(server) : nullptr;
  }
  std::shared_ptr<grpc::Channel> Dial(const GrpcServer& server) {
    return MakeChannel(absl::StrCat("127.0.0.1:", server.port()), grpc::InsecureChannelCredentials());
  }
};

// The answer of grpc.health.v1.Health/Check for the whole server, as protobuf bytes.
std::string Health(grpc::Channel& channel) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 20s);
  const grpc::ByteBuffer request = ToByteBuffer("");
  grpc::ByteBuffer response;
  const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check", grpc::internal::RpcMethod::NORMAL_RPC);
  const grpc::Status status =
      grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer, grpc::ByteBuffer, grpc::ByteBuffer>(
          &channel, method, &context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return ToString(response);
}

TEST_F(GrpcServerTest, ServesOnAFreePort) {
  EchoService service(Echo());
  const auto server = StartWith(service);
  ASSERT_GT(server->port(), 0);
  std::string out;
  EXPECT_TRUE(CallEcho(*Dial(*server), "hello", out).ok());
  EXPECT_EQ(out, "hello");
}

TEST_F(GrpcServerTest, TakenPortIsUnavailableAndNamed) {
  EchoService service(Echo());
  const auto server = StartWith(service);
  const std::string address = absl::StrCat("127.0.0.1:", server->port());
  const auto second = GrpcServer::Start({address, grpc::InsecureServerCredentials(), {}});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address));
}

TEST_F(GrpcServerTest, PortIsFreeAgainAfterShutdown) {
  EchoService service(Echo());
  auto server = StartWith(service);
  const std::string address = absl::StrCat("127.0.0.1:", server->port());
  server.reset();
  EchoService again(Echo());
  EXPECT_NE(StartWith(again, address), nullptr);
}

TEST_F(GrpcServerTest, WrongAddressesAreInvalid) {
  for (const char* address : {"", "127.0.0.1", ":5", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1"}) {
    EXPECT_EQ(GrpcServer::Start({address, grpc::InsecureServerCredentials(), {}}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
  EXPECT_EQ(GrpcServer::Start({"127.0.0.1:0", nullptr, {}}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GrpcServer::Start({"192.0.2.1:0", grpc::InsecureServerCredentials(), {}}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(GrpcServerTest, HealthFollowsSetServing) {
  EchoService service(Echo());
  const auto server = StartWith(service);
  const auto channel = Dial(*server);
  EXPECT_EQ(Health(*channel), "\x08\x01");  // status: SERVING
  server->SetServing(false);
  EXPECT_EQ(Health(*channel), "\x08\x02");  // status: NOT_SERVING
  server->SetServing(true);
  EXPECT_EQ(Health(*channel), "\x08\x01");
}

TEST_F(GrpcServerTest, ReflectionIsServed) {
  EchoService service(Echo());
  const auto server = StartWith(service);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 20s);
  grpc::GenericStub stub(Dial(*server));
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  ASSERT_TRUE(next());
  call->Write(ToByteBuffer(std::string("\x3a\x00", 2)), nullptr);  // list_services: ""
  ASSERT_TRUE(next());
  grpc::ByteBuffer response;
  call->Read(&response, nullptr);
  ASSERT_TRUE(next());
  EXPECT_THAT(ToString(response), HasSubstr("grpc.health.v1.Health"));
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  queue.Shutdown();
  while (next()) {
  }
}

TEST_F(GrpcServerTest, MessagesUpTo64MiBPassAndLargerOnesAreRefused) {
  EchoService service(Echo());
  const auto server = StartWith(service);
  const auto channel = Dial(*server);
  std::string out;
  const std::string largest(kMaxMessageBytes, 'x');
  ASSERT_TRUE(CallEcho(*channel, largest, out, 60s).ok());
  EXPECT_TRUE(out == largest);
  EXPECT_EQ(CallEcho(*channel, largest + "x", out, 60s).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(GrpcServerTest, ErrorsTravelWithCodeAndMessage) {
  EchoService service([](grpc::ServerContext&, const std::string&, std::string&) {
    return absl::AbortedError("epoch 3: look up again");
  });
  const auto server = StartWith(service);
  std::string out;
  EXPECT_EQ(CallEcho(*Dial(*server), "", out), absl::AbortedError("epoch 3: look up again"));
}

// A handler that says when it runs and stays until released or cancelled.
class Gate {
 public:
  EchoService::Handler Handler() {
    return [this](grpc::ServerContext& context, const std::string&, std::string&) {
      MutexLock lock(mu_);
      ++entered_;
      changed_.NotifyAll();
      while (!open_ && !context.IsCancelled()) changed_.WaitFor(lock, absl::Milliseconds(20));
      return open_ ? absl::OkStatus() : absl::CancelledError("shut down");
    };
  }
  // True when `count` handlers have begun before the patience ends.
  bool AwaitEntered(int count) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    MutexLock lock(mu_);
    while (entered_ < count) {
      if (absl::Now() >= deadline) return false;
      changed_.WaitFor(lock, deadline - absl::Now());
    }
    return true;
  }
  void Open() {
    MutexLock lock(mu_);
    open_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int entered_ ABSL_GUARDED_BY(mu_) = 0;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
};

TEST_F(GrpcServerTest, ShutdownLetsARunningCallEnd) {
  Gate gate;
  EchoService service(gate.Handler());
  const auto server = StartWith(service);
  absl::Status status;
  std::thread caller([&, channel = Dial(*server)] {
    std::string out;
    status = CallEcho(*channel, "", out);
  });
  EXPECT_TRUE(gate.AwaitEntered(1));
  std::thread shutdown([&] { server->Shutdown(absl::Seconds(30)); });
  gate.Open();
  shutdown.join();
  caller.join();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(GrpcServerTest, ShutdownCancelsACallThatOutlastsTheGrace) {
  Gate gate;
  EchoService service(gate.Handler());
  const auto server = StartWith(service);
  absl::Status status;
  std::thread caller([&, channel = Dial(*server)] {
    std::string out;
    status = CallEcho(*channel, "", out);
  });
  EXPECT_TRUE(gate.AwaitEntered(1));
  server->Shutdown(absl::Milliseconds(50));
  caller.join();
  EXPECT_FALSE(status.ok());
  server->Shutdown(absl::ZeroDuration());
}

TEST_F(GrpcServerTest, CallsAboveTheThreadLimitAreRefused) {
  Gate gate;
  EchoService service(gate.Handler());
  const auto server = StartWith(service, "127.0.0.1:0", 4);
  const auto channel = Dial(*server);
  std::vector<std::thread> callers;
  Mutex mu;
  int refused = 0;
  for (int i = 0; i < 16; ++i) {
    callers.emplace_back([&] {
      std::string out;
      const absl::Status status = CallEcho(*channel, "", out, 60s);
      if (status.code() == absl::StatusCode::kResourceExhausted) {
        MutexLock lock(mu);
        ++refused;
        if (refused == 10) gate.Open();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_GE(refused, 10);
}

TEST_F(GrpcServerTest, ChannelReconnectsSoonAfterARestart) {
  EchoService service(Echo());
  auto server = StartWith(service);
  const std::string address = absl::StrCat("127.0.0.1:", server->port());
  const auto channel = Dial(*server);
  std::string out;
  ASSERT_TRUE(CallEcho(*channel, "a", out).ok());
  server.reset();
  EXPECT_EQ(CallEcho(*channel, "b", out).code(), absl::StatusCode::kUnavailable);
  EchoService again(Echo());
  server = StartWith(again, address);
  ASSERT_NE(server, nullptr);
  const auto wait_for_ready = [](grpc::ClientContext& context) { context.set_wait_for_ready(true); };
  EXPECT_TRUE(CallEcho(*channel, "c", out, 10s, wait_for_ready).ok());
  EXPECT_EQ(out, "c");
}

}  // namespace
}  // namespace kvmesh
