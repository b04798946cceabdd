#include "kvstore/service/ops_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvstore/base/mutex.h"

namespace kvmesh {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What the server answers to `request` on a fresh connection, up to its close.
std::string Exchange(int port, const std::string& request) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  const timeval patience = {.tv_sec = 60};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    for (ssize_t got = read(fd, buffer, sizeof(buffer)); got > 0; got = read(fd, buffer, sizeof(buffer))) {
      answer.append(buffer, static_cast<size_t>(got));
    }
  }
  close(fd);
  return answer;
}

class OpsServerTest : public ::testing::Test {
 protected:
  void Start(OpsServerOptions options) {
    if (options.address.empty()) options.address = "127.0.0.1:0";
    auto server = OpsServer::Start(std::move(options), metrics_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ASSERT_GT(server_->port(), 0);
  }
  std::string Get(const std::string& path, const std::string& method = "GET") {
    return Exchange(server_->port(), absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"));
  }

  Metrics metrics_;
  std::unique_ptr<OpsServer> server_;
};

TEST_F(OpsServerTest, HealthIsOk) {
  Start({});
  const std::string answer = Get("/healthz");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\nok\n"));
}

TEST_F(OpsServerTest, ReadinessFollowsTheCallback) {
  Mutex mu;
  std::string reason = "warming";
  OpsServerOptions options;
  options.not_ready = [&] {
    MutexLock lock(mu);
    return reason;
  };
  Start(options);
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_THAT(Get("/readyz"), EndsWith("\r\n\r\nwarming\n"));
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 "));
  {
    MutexLock lock(mu);
    reason = "";
  }
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(OpsServerTest, ReadyWithoutACallback) {
  Start({});
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(OpsServerTest, MetricsAreCollectedPerRequest) {
  Start({});
  auto& gauge = metrics_.Gauge("kvmesh_depth", "Depth");
  double depth = 0;
  const CollectHook hook = metrics_.OnCollect([&] { gauge.Set(++depth); });
  const std::string first = Get("/metrics");
  EXPECT_THAT(first, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(first, HasSubstr("kvmesh_depth 1\n"));
  EXPECT_THAT(Get("/metrics"), HasSubstr("kvmesh_depth 2\n"));
}

TEST_F(OpsServerTest, OtherPathsAndMethodsAreRefused) {
  Start({});
  for (const char* path : {"/", "/healthz/", "/healthz2", "/metrics/x", "/etc/passwd", "/../etc/passwd"}) {
    EXPECT_THAT(Get(path), StartsWith("HTTP/1.1 404 ")) << path;
  }
  for (const char* method : {"POST", "PUT", "DELETE"}) {
    EXPECT_THAT(Get("/metrics", method), StartsWith("HTTP/1.1 405 ")) << method;
  }
}

TEST_F(OpsServerTest, HeadHasNoBody) {
  Start({});
  const std::string answer = Get("/healthz", "HEAD");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n"));
}

TEST_F(OpsServerTest, QueryIsNotPartOfThePath) {
  Start({});
  EXPECT_THAT(Get("/healthz?verbose=1"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(OpsServerTest, GarbageLeavesItServing) {
  Start({});
  Exchange(server_->port(), "\x16\x03\x01 not http at all\r\n\r\n");
  Exchange(server_->port(), std::string(100'000, 'A') + "\r\n\r\n");
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(OpsServerTest, ManyClientsAreServedByFewThreads) {
  Start({});
  std::atomic<int> ok = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&] {
      for (int k = 0; k < 10; ++k) ok += Get("/healthz").find("200 OK") != std::string::npos;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(ok, 160);
}

TEST_F(OpsServerTest, TakenPortIsUnavailableAndNamed) {
  Start({});
  const std::string address = absl::StrCat("127.0.0.1:", server_->port());
  const absl::Status status = OpsServer::Start({address, nullptr}, metrics_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
}

TEST_F(OpsServerTest, PortIsFreeAgainAfterDestruction) {
  Start({});
  OpsServerOptions same;
  same.address = absl::StrCat("127.0.0.1:", server_->port());
  server_.reset();
  Start(same);
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(OpsServerTest, WrongOptionsAreInvalid) {
  for (const char* address : {"", "127.0.0.1", ":80", "127.0.0.1:99999", "127.0.0.1:1,127.0.0.1:2", "127.0.0.1:80s"}) {
    EXPECT_EQ(OpsServer::Start({address, nullptr}, metrics_).status().code(), absl::StatusCode::kInvalidArgument)
        << address;
  }
  for (int threads : {0, -1, 65}) {
    EXPECT_EQ(OpsServer::Start({"127.0.0.1:0", nullptr, threads}, metrics_).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(OpsServer::Start({"192.0.2.1:0", nullptr}, metrics_).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kvmesh
