// A coordinator on a free port of this machine, with a clock moved by hand, and clients of it.
#ifndef KVMESH_TESTS_UNIT_COORDINATOR_SERVER_COORDINATOR_WORLD_H_
#define KVMESH_TESTS_UNIT_COORDINATOR_SERVER_COORDINATOR_WORLD_H_

#include <grpcpp/client_context.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/server/coordinator_server.h"
#include "kvmesh/v1/coordinator.grpc.pb.h"
#include "kvstore/service/grpc_status.h"
#include "tests/support/await.h"
#include "tests/support/gate.h"
#include "tests/unit/coordinator/scripted_worker.h"

namespace kvmesh {

// A context that gives up after kTestPatience.
inline std::unique_ptr<grpc::ClientContext> TestContext() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kTestPatience));
  return context;
}

// The worker's end of a real report stream.
class ReportClient {
 public:
  explicit ReportClient(v1::Coordinator::Stub& stub) : context_(TestContext()), stream_(stub.Report(context_.get())) {}
  ~ReportClient() {
    context_->TryCancel();
    if (!finished_) stream_->Finish();
  }

  bool Send(const v1::ReportRequest& request) { return stream_->Write(request); }
  // The next answer; none when the stream has ended.
  bool Receive(v1::ReportResponse& response) { return stream_->Read(&response); }
  // Kind of the next answer, "end" when the stream has ended.
  std::string Next() {
    v1::ReportResponse response;
    return Receive(response) ? Kinds({response}) : "end";
  }
  // Reads on until the event is acknowledged; false when the stream ends or another answer comes first.
  bool AwaitApplied(uint64_t sequence) {
    v1::ReportResponse response;
    while (Receive(response)) {
      if (response.kind_case() != v1::ReportResponse::kAppliedSequence) return false;
      if (response.applied_sequence() >= sequence) return true;
    }
    return false;
  }
  // Registers a worker and sends its snapshot.
  void GoLive(ScriptedWorker& worker) {
    ASSERT_TRUE(Send(worker.Register()));
    ASSERT_EQ(Next(), "registered");
    ASSERT_EQ(Next(), "resync:1");
    for (const auto& piece : worker.Snapshot()) ASSERT_TRUE(Send(piece));
    ASSERT_TRUE(AwaitApplied(worker.sequence()));
  }
  void CloseWrites() { stream_->WritesDone(); }
  absl::Status Finish() {
    finished_ = true;
    return FromGrpcStatus(stream_->Finish());
  }
  void Cancel() { context_->TryCancel(); }

 private:
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ReportRequest, v1::ReportResponse>> stream_;
  bool finished_ = false;
};

class CoordinatorTest : public testing::Test {
 protected:
  static constexpr uint32_t kBlockTokens = 16;

  void SetUp() override {
    options_.listen = "127.0.0.1:0";
    options_.tls.insecure = true;
    options_.cluster_secret = "secret";
    options_.clock = &clock_;
    options_.registry.heartbeat_interval = absl::Seconds(1);
  }
  void Start() {
    auto server = CoordinatorServer::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::Coordinator::NewStub(MakeChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  void Advance(absl::Duration by) { clock_.AdvanceTo(clock_.Now() + by); }

  template <class Request, class Response>
  absl::Status Call(grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    return FromGrpcStatus((stub_.get()->*method)(TestContext().get(), request, response));
  }
  absl::Status Route(const v1::RouteRequest& request, v1::RouteResponse* response) {
    return Call(&v1::Coordinator::Stub::Route, request, response);
  }
  absl::Status Beat(const ScriptedWorker& worker, uint64_t queued = 0) {
    v1::HeartbeatRequest request;
    request.set_worker_id(worker.id());
    request.set_incarnation(const_cast<ScriptedWorker&>(worker).info().incarnation());
    request.set_queued_tokens(queued);
    v1::HeartbeatResponse response;
    return Call(&v1::Coordinator::Stub::Heartbeat, request, &response);
  }
  v1::ListWorkersResponse ListWorkers() {
    v1::ListWorkersResponse response;
    EXPECT_TRUE(Call(&v1::Coordinator::Stub::ListWorkers, v1::ListWorkersRequest(), &response).ok());
    return response;
  }
  // By root and keys, so that no identity is needed.
  v1::RouteRequest ByKeys(std::span<const BlockKey> keys) const {
    v1::RouteRequest request;
    request.set_root(root_.ToString());
    request.set_block_keys(std::string(KeysToBytes(keys)));
    return request;
  }
  // Longest prefix that a route finds; the placement is forgotten by its expiry.
  uint64_t Matched(std::span<const BlockKey> keys) {
    v1::RouteResponse response;
    const absl::Status status = Route(ByKeys(keys), &response);
    EXPECT_TRUE(status.ok()) << status;
    return response.matched_tokens();
  }

  const RootKey root_ = TestRoot(1);
  const std::vector<BlockKey> chain_ = TestChain(root_, 0, 6);
  ManualClock clock_{absl::Now()};
  CoordinatorOptions options_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_COORDINATOR_SERVER_COORDINATOR_WORLD_H_
