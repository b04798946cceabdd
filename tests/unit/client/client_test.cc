#include "client/client.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvstore/base/mutex.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/wire/wire.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

// Answers Route with its own name, or with a status; keeps the last request.
class FakeCoordinator : public v1::Coordinator::Service {
 public:
  explicit FakeCoordinator(std::string name) : name_(std::move(name)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override { server_->Shutdown(); }

  grpc::Status Route(grpc::ServerContext*, const v1::RouteRequest* request, v1::RouteResponse* response) override {
    MutexLock lock(mu_);
    ++calls_;
    last_ = *request;
    response->set_worker_id(name_);
    return answer_;
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  void AnswerWith(grpc::Status answer) {
    MutexLock lock(mu_);
    answer_ = std::move(answer);
  }
  v1::RouteRequest last() const {
    MutexLock lock(mu_);
    return last_;
  }
  int calls() const {
    MutexLock lock(mu_);
    return calls_;
  }

 private:
  const std::string name_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  mutable Mutex mu_;
  grpc::Status answer_ ABSL_GUARDED_BY(mu_);
  v1::RouteRequest last_ ABSL_GUARDED_BY(mu_);
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
};

class ClientTest : public testing::Test {
 protected:
  std::unique_ptr<Client> NewClient(std::vector<std::string> coordinators, std::optional<TenantSecret> secret) {
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(
        {.coordinators = std::move(coordinators), .tls = {.insecure = true}, .tenant_secret = std::move(secret)});
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  static std::vector<uint32_t> Tokens(size_t count) {
    std::vector<uint32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), 1u);
    return tokens;
  }

  const CacheIdentity identity_ = {.tenant = "t", .model = "m", .block_tokens = 4};
  FakeCoordinator first_{"first"};
  FakeCoordinator second_{"second"};
};

TEST_F(ClientTest, NeedsACoordinatorAndAWordOnTls) {
  EXPECT_THAT(Client::Create({.coordinators = {}, .tls = {.insecure = true}, .tenant_secret = {}}).status().ToString(),
              HasSubstr("--coordinator"));
  EXPECT_FALSE(Client::Create({.coordinators = {"127.0.0.1:1"}, .tls = {}, .tenant_secret = {}}).ok());
}

TEST_F(ClientTest, WithTheSecretNoTokenLeavesTheClient) {
  const TenantSecret secret = DeriveTenantSecret("cluster", "t");
  const std::unique_ptr<Client> client = NewClient({first_.address()}, secret);
  ASSERT_TRUE(client->Route(identity_, Tokens(10), {.worker_id = "w", .top_k = 3}).ok());
  const v1::RouteRequest request = first_.last();
  const RootKey root = DeriveRoot(secret, ComputeFingerprint(identity_));
  EXPECT_EQ(request.block_keys(), KeysToBytes(ComputeBlockKeys(RootAsParent(root), Tokens(10), 4)));
  EXPECT_EQ(request.prompt_tokens(), 10u);
  EXPECT_FALSE(request.has_tokens());
  EXPECT_EQ(request.worker_id(), "w");
  EXPECT_EQ(request.top_k(), 3u);
  EXPECT_EQ(*IdentityFromProto(request.identity()), identity_);
}

TEST_F(ClientTest, WithoutTheSecretTokensAreSent) {
  const std::unique_ptr<Client> client = NewClient({first_.address()}, std::nullopt);
  ASSERT_TRUE(client->Route(identity_, Tokens(10), {}).ok());
  EXPECT_EQ(first_.last().tokens().ids_size(), 10);
  EXPECT_TRUE(first_.last().block_keys().empty());
}

TEST_F(ClientTest, WithoutALookupNeitherIsSent) {
  const std::unique_ptr<Client> client = NewClient({first_.address()}, DeriveTenantSecret("cluster", "t"));
  ASSERT_TRUE(client->Route(identity_, Tokens(10), {.no_lookup = true}).ok());
  EXPECT_TRUE(first_.last().block_keys().empty());
  EXPECT_FALSE(first_.last().has_tokens());
  EXPECT_EQ(first_.last().prompt_tokens(), 10u);
}

TEST_F(ClientTest, AFaultyIdentityIsRefusedHere) {
  const std::unique_ptr<Client> client = NewClient({first_.address()}, std::nullopt);
  EXPECT_TRUE(absl::IsInvalidArgument(client->Route({.model = "m"}, Tokens(10), {}).status()));
  EXPECT_EQ(first_.calls(), 0);
}

TEST_F(ClientTest, AnUnavailableCoordinatorIsFollowedByTheNext) {
  const std::unique_ptr<Client> client = NewClient({first_.address(), second_.address()}, std::nullopt);
  EXPECT_EQ(client->Route(identity_, Tokens(4), {})->worker_id(), "first");
  first_.AnswerWith(grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining"));
  EXPECT_EQ(client->Route(identity_, Tokens(4), {})->worker_id(), "second");
  second_.AnswerWith(grpc::Status(grpc::StatusCode::UNAVAILABLE, "no workers"));
  const absl::Status status = client->Route(identity_, Tokens(4), {}).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no workers (coordinator " + second_.address()));
}

TEST_F(ClientTest, AnotherErrorIsFinal) {
  const std::unique_ptr<Client> client = NewClient({first_.address(), second_.address()}, std::nullopt);
  first_.AnswerWith(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "busy"));
  EXPECT_TRUE(absl::IsResourceExhausted(client->Route(identity_, Tokens(4), {}).status()));
  EXPECT_EQ(second_.calls(), 0);
}

}  // namespace
}  // namespace kvmesh
