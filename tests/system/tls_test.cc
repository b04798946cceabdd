// The processes as an operator meets them: mutual TLS and tenants, wrong flags, the end on SIGTERM, health
// and readiness.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kvstore/service/grpc_server.h"
#include "kvstore/service/grpc_status.h"
#include "kvstore/wire/wire.h"
#include "tests/support/await.h"
#include "tests/support/process_cluster.h"
#include "tests/support/raw_call.h"
#include "tests/system/engine_calls.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

// A throw-away authority, and certificates that it signed.
class Authority {
 public:
  explicit Authority(const TempDir& folder, std::string name) : folder_(folder), name_(std::move(name)) {
    Run(absl::StrCat("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=",
                     name_, " -keyout ", Path(name_, "key"), " -out ", Path(name_, "pem")));
  }
  // Files of a certificate with that common name, good for 127.0.0.1.
  TlsOptions Issue(const std::string& cn) const {
    const std::string file = absl::StrCat(name_, "-", cn);
    std::ofstream(Path(file, "ext")) << "subjectAltName=IP:127.0.0.1,DNS:localhost\n";
    Run(absl::StrCat("openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=", cn, " -keyout ",
                     Path(file, "key"), " -out ", Path(file, "csr")));
    Run(absl::StrCat("openssl x509 -req -days 2 -in ", Path(file, "csr"), " -CA ", Path(name_, "pem"), " -CAkey ",
                     Path(name_, "key"), " -CAcreateserial -extfile ", Path(file, "ext"), " -out ", Path(file, "pem")));
    return {.cert_file = Path(file, "pem"), .key_file = Path(file, "key"), .ca_file = Path(name_, "pem")};
  }

 private:
  std::string Path(const std::string& name, const char* kind) const { return folder_ / absl::StrCat(name, ".", kind); }
  static void Run(const std::string& command) {
    EXPECT_EQ(std::system(absl::StrCat(command, " >/dev/null 2>&1").c_str()), 0) << command;
  }

  const TempDir& folder_;
  const std::string name_;
};

std::unique_ptr<v1::Worker::Stub> WorkerStub(const std::string& address, const TlsOptions& tls) {
  const auto credentials = MakeChannelCredentials(tls);
  EXPECT_TRUE(credentials.ok()) << credentials.status();
  return v1::Worker::NewStub(MakeChannel(address, *credentials));
}

CacheIdentity IdentityOf(const std::string& tenant) {
  CacheIdentity identity;
  identity.tenant = tenant;
  identity.model = "engine";
  identity.block_tokens = kEngineBlockTokens;
  return identity;
}

class TlsTest : public testing::Test {
 protected:
  TlsTest() : authority_(folder_, "authority"), alice_(authority_.Issue("alice")), bob_(authority_.Issue("bob")) {}

  void StartCluster() {
    cluster_ = std::make_unique<ProcessCluster>(ClusterConfig{.workers = {{.model = false}, {.model = false}},
                                                              .secret = "of the cluster",
                                                              .server_tls = authority_.Issue("server"),
                                                              .client_tls = alice_});
    ASSERT_TRUE(cluster_->Start());
  }

  TempDir folder_;
  Authority authority_;
  TlsOptions alice_;
  TlsOptions bob_;
  std::unique_ptr<ProcessCluster> cluster_;
};

TEST_F(TlsTest, TenantIsTheCertificatesAndNotTheRequests) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const std::vector<uint32_t> tokens(32, 4);
  const auto alice = WorkerStub(cluster_->address(0), alice_);
  const auto bob = WorkerStub(cluster_->address(0), bob_);
  const auto put = PutBlocks(*alice, IdentityOf("bob"), tokens, 0, std::string(2 * kEngineBlockBytes, 'a'));
  ASSERT_TRUE(put.ok()) << put.status();
  for (const char* claimed : {"", "alice", "bob"}) {
    EXPECT_EQ(GetBlocks(*alice, IdentityOf(claimed), tokens).blocks, 2u) << claimed;
    EXPECT_EQ(GetBlocks(*bob, IdentityOf(claimed), tokens).blocks, 0u) << claimed;
  }
  // The coordinator sees it the same way, and peers serve each other.
  v1::RouteResponse route;
  ASSERT_TRUE(Await(absl::Seconds(5), [&] {
    const auto answer = cluster_->client().Route(IdentityOf("bob"), tokens, {.worker_id = cluster_->worker_id(1)});
    if (answer.ok()) route = *answer;
    return route.sources_size() > 0;
  })) << route.DebugString();
  ClientOptions options;
  options.coordinators = {cluster_->coordinator_address()};
  options.tls = bob_;
  const auto bobs_client = Client::Create(options);
  ASSERT_TRUE(bobs_client.ok()) << bobs_client.status();
  const auto bobs_route = (*bobs_client)->Route(IdentityOf("alice"), tokens, {});
  ASSERT_TRUE(bobs_route.ok()) << bobs_route.status();
  EXPECT_EQ(bobs_route->matched_tokens(), 0u);
  const auto opened = OpenSequence(*WorkerStub(cluster_->address(1), alice_), IdentityOf(""), tokens, &route);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->hits().peer(), 32u);
}

TEST_F(TlsTest, StrangersAreRefused) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const Authority other(folder_, "other");
  TlsOptions stranger = other.Issue("alice");
  stranger.ca_file = alice_.ca_file;
  for (const TlsOptions& tls : {TlsOptions{.insecure = true}, stranger}) {
    const auto credentials = MakeChannelCredentials(tls);
    ASSERT_TRUE(credentials.ok()) << credentials.status();
    for (const std::string& address : {cluster_->coordinator_address(), cluster_->address(0)}) {
      const auto channel = MakeChannel(address, *credentials);
      grpc::ClientContext worker_context;
      grpc::ClientContext coordinator_context;
      const auto deadline = absl::ToChronoTime(absl::Now() + absl::Seconds(3));
      worker_context.set_deadline(deadline);
      coordinator_context.set_deadline(deadline);
      v1::WorkerStatsResponse worker_response;
      v1::CoordinatorStatsResponse coordinator_response;
      EXPECT_FALSE(v1::Worker::NewStub(channel)->Stats(&worker_context, {}, &worker_response).ok());
      const grpc::Status status =
          v1::Coordinator::NewStub(channel)->Stats(&coordinator_context, {}, &coordinator_response);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    }
  }
  EXPECT_TRUE(cluster_->Stats(0).ok());
}

// The status that a call of `stub` ends with.
template <class Stub, class Request, class Response>
absl::Status Ask(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                 const Request& request, Response* response) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  return FromGrpcStatus((stub.*method)(&context, request, response));
}
template <class Stub, class Request, class Response>
absl::Status Ask(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                 const Request& request) {
  Response response;
  return Ask(stub, method, request, &response);
}

std::unique_ptr<v1::Coordinator::Stub> CoordinatorStub(const std::string& address, const TlsOptions& tls) {
  const auto credentials = MakeChannelCredentials(tls);
  EXPECT_TRUE(credentials.ok()) << credentials.status();
  return v1::Coordinator::NewStub(MakeChannel(address, *credentials));
}

TEST_F(TlsTest, CallsOfMembersAreRefusedToTenants) {
  const std::vector<std::string> members = {"--member-cn", "server,operator"};
  cluster_ = std::make_unique<ProcessCluster>(ClusterConfig{.workers = {{.model = false, .extra = members}},
                                                            .coordinator_extra = members,
                                                            .secret = "of the cluster",
                                                            .server_tls = authority_.Issue("server"),
                                                            .client_tls = authority_.Issue("operator")});
  ASSERT_TRUE(cluster_->Start()) << "members report, list and read DebugState";
  EXPECT_TRUE(cluster_->BooksAreClean());
  const auto coordinator = CoordinatorStub(cluster_->coordinator_address(), alice_);
  const auto worker = WorkerStub(cluster_->address(0), alice_);
  using Coordinator = v1::Coordinator::Stub;
  const auto denied = absl::StatusCode::kPermissionDenied;
  EXPECT_EQ(Ask(*coordinator, &Coordinator::Heartbeat, v1::HeartbeatRequest()).code(), denied);
  EXPECT_EQ(Ask(*coordinator, &Coordinator::Drain, v1::DrainRequest()).code(), denied);
  EXPECT_EQ(Ask(*coordinator, &Coordinator::ListWorkers, v1::ListWorkersRequest()).code(), denied);
  EXPECT_EQ(Ask(*worker, &v1::Worker::Stub::DebugState, v1::DebugStateRequest()).code(), denied);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  const auto report = coordinator->Report(&context);
  v1::ReportResponse answer;
  EXPECT_FALSE(report->Read(&answer));
  const grpc::Status ended = report->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::PERMISSION_DENIED) << ended.error_message();
  EXPECT_THAT(ended.error_message(), HasSubstr("alice"));
  // What tenants may do, they may.
  v1::RouteRequest route;
  IdentityToProto(IdentityOf(""), *route.mutable_identity());
  route.set_prompt_tokens(3);
  EXPECT_TRUE(Ask(*coordinator, &Coordinator::Route, route).ok());
  EXPECT_TRUE(Ask(*coordinator, &Coordinator::Stats, v1::CoordinatorStatsRequest()).ok());
  EXPECT_TRUE(Ask(*worker, &v1::Worker::Stub::Stats, v1::WorkerStatsRequest()).ok());
}

TEST_F(TlsTest, NamedPinsAreATenantsOwn) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const std::vector<uint32_t> tokens(32, 4);
  const auto pins = [this] {
    const auto state = cluster_->DebugState(0);
    return state.ok() ? static_cast<int>(state->pins()) : -1;
  };
  const auto pin = [&](const TlsOptions& tenant) {
    const auto put = PutBlocks(*WorkerStub(cluster_->address(0), tenant), IdentityOf(""), tokens, 0,
                               std::string(2 * kEngineBlockBytes, 'a'));
    ASSERT_TRUE(put.ok()) << put.status();
    v1::PinRequest request;
    IdentityToProto(IdentityOf(""), *request.mutable_prefix()->mutable_identity());
    request.mutable_prefix()->mutable_tokens()->mutable_ids()->Assign(tokens.begin(), tokens.end());
    request.set_pin_id("p");
    request.set_ttl_ms(600'000);
    const auto coordinator = CoordinatorStub(cluster_->coordinator_address(), tenant);
    absl::Status status;
    EXPECT_TRUE(Await(absl::Seconds(10), [&] {  // the coordinator hears of the blocks a moment later
      status = Ask(*coordinator, &v1::Coordinator::Stub::Pin, request);
      return !absl::IsNotFound(status);
    }));
    EXPECT_TRUE(status.ok()) << status;
  };
  const auto unpin = [&](const TlsOptions& tenant) {
    v1::UnpinRequest request;
    request.set_pin_id("p");
    const auto coordinator = CoordinatorStub(cluster_->coordinator_address(), tenant);
    const absl::Status status = Ask(*coordinator, &v1::Coordinator::Stub::Unpin, request);
    EXPECT_TRUE(status.ok()) << status;
  };
  ASSERT_NO_FATAL_FAILURE(pin(alice_));
  EXPECT_EQ(pins(), 1);
  unpin(bob_);
  EXPECT_EQ(pins(), 1) << "Bob dropped Alice's pin";
  ASSERT_NO_FATAL_FAILURE(pin(bob_));
  EXPECT_EQ(pins(), 2) << "Bob's pin replaced Alice's";
  unpin(bob_);
  EXPECT_EQ(pins(), 1);
  unpin(alice_);
  EXPECT_EQ(pins(), 0);
}

constexpr absl::Duration kPatience = absl::Seconds(20);

const char* const kPrograms[] = {"kvmesh-coordinator", "kvmesh-worker"};

std::vector<std::string> Program(const std::string& name) {
  std::vector<std::string> argv = {absl::StrCat(KVMESH_BIN_DIR, "/", name)};
  if (name == "kvmesh-worker") {
    argv.insert(argv.end(), {"--id", "w", "--layers", "2", "--kv-heads", "2", "--head-dim", "16"});
  }
  return argv;
}

TEST(ProcessTest, NeitherCertificatesNorInsecureEndsWithOneLineThatNamesTheFlag) {
  TempDir folder;
  for (const char* name : kPrograms) {
    const EndedProgram ended = RunProgram(folder.path(), Program(name), kPatience);
    EXPECT_EQ(ended.code, 2) << name << "\n" << ended.error;
    EXPECT_THAT(ended.error, HasSubstr("--tls-cert"));
    EXPECT_THAT(ended.error, HasSubstr("--insecure"));
    EXPECT_EQ(std::count(ended.error.begin(), ended.error.end(), '\n'), 1) << ended.error;
    EXPECT_EQ(ended.output, "");
  }
}

TEST(ProcessTest, SecondServerOnAPortFailsAndSaysSo) {
  TempDir folder;
  ProcessCluster cluster({.workers = {{.model = false}}});
  ASSERT_TRUE(cluster.Start());
  const std::string taken[] = {cluster.coordinator_address(), cluster.address(0)};
  for (size_t i = 0; i < 2; ++i) {
    std::vector<std::string> argv = Program(kPrograms[i]);
    argv.insert(argv.end(), {"--insecure", "--listen", taken[i]});
    const EndedProgram ended = RunProgram(folder.path(), argv, kPatience);
    EXPECT_EQ(ended.code, 1) << kPrograms[i] << "\n" << ended.error;
    EXPECT_THAT(ended.error, HasSubstr(taken[i]));
  }
  EXPECT_TRUE(cluster.Stats(0).ok());
}

TEST(ProcessTest, SigtermDrainsRunningCallsAndExitsWithZero) {
  ProcessCluster cluster({.workers = {WorkerConfig{}}});
  ASSERT_TRUE(cluster.Start());
  const auto stub = cluster.Stub(0);
  v1::GenerateRequest request;
  request.set_text("And the king said unto");
  request.set_max_tokens(200);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  cluster.worker(0).Signal(SIGTERM);
  int tokens = 0;
  while (reader->Read(&response)) tokens += response.has_token() ? 1 : 0;
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(tokens, 200);
  EXPECT_EQ(cluster.worker(0).AwaitExit(absl::Seconds(15)), 0);
  cluster.coordinator().Signal(SIGTERM);
  EXPECT_EQ(cluster.coordinator().AwaitExit(absl::Seconds(15)), 0);
}

TEST(ProcessTest, HealthReadinessAndReflectionAnswer) {
  ProcessCluster cluster({.workers = {WorkerConfig{.host_blocks = 8, .disk = true}}});
  ASSERT_TRUE(cluster.Start());
  const std::pair<std::string, int> programs[] = {{cluster.coordinator_address(), cluster.coordinator_ops_port()},
                                                  {cluster.address(0), cluster.ops_port(0)}};
  for (const auto& [address, ops_port] : programs) {
    const auto channel = MakeChannel(address, grpc::InsecureChannelCredentials());
    // An empty HealthCheckRequest asks for the whole server; field 1 of the answer is 1, SERVING.
    const RawAnswer health = RawCall(channel, "/grpc.health.v1.Health/Check", "", absl::Seconds(5));
    EXPECT_TRUE(health.status.ok()) << address << ": " << health.status.error_message();
    EXPECT_EQ(health.first, "\x08\x01");
    // Field 7 of the request lists the services.
    const RawAnswer reflected = RawCall(channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                        std::string("\x3a\x01*", 3), absl::Seconds(5));
    EXPECT_TRUE(reflected.status.ok()) << address << ": " << reflected.status.error_message();
    EXPECT_THAT(reflected.first, HasSubstr("kvmesh.v1."));
    EXPECT_TRUE(HttpGet(ops_port, "/healthz")) << address;
    const int port = ops_port;
    EXPECT_TRUE(Await(absl::Seconds(20), [port] { return HttpGet(port, "/readyz"); })) << address;
  }
}

TEST(ProcessTest, WorkerStaysReadyWhenItsCoordinatorHasGone) {
  ProcessCluster cluster({.workers = {{.model = false}}});
  ASSERT_TRUE(cluster.Start());
  ASSERT_TRUE(Await(kPatience, [&] { return HttpGet(cluster.ops_port(0), "/readyz"); }));
  cluster.coordinator().Kill();
  ASSERT_TRUE(Await(kPatience, [&] {
    return cluster.worker(0).LogTail().find("report stream ended") != std::string::npos;
  })) << cluster.worker(0).LogTail();
  EXPECT_TRUE(HttpGet(cluster.ops_port(0), "/readyz"));
  EXPECT_TRUE(cluster.Stats(0).ok());
}

}  // namespace
}  // namespace kvmesh
