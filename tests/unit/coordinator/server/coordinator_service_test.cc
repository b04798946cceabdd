// What waits for the executor: bounded, and dropped when its caller has gone.
#include "coordinator/server/coordinator_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvstore/service/grpc_server.h"
#include "tests/unit/coordinator/server/coordinator_world.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

// Runs nothing until it is told to.
class HeldExecutor : public Executor {
 public:
  void Schedule(std::function<void()> work) override {
    MutexLock lock(mu_);
    queue_.push_back(std::move(work));
  }
  size_t size() const {
    MutexLock lock(mu_);
    return queue_.size();
  }
  void RunAll() {
    while (size() > 0) {
      std::function<void()> work;
      {
        MutexLock lock(mu_);
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
    }
  }

 private:
  mutable Mutex mu_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
};

class QueuedRoutesTest : public testing::Test {
 protected:
  // One batch, answered some time.
  struct Batch {
    std::unique_ptr<grpc::ClientContext> context = TestContext();
    v1::RouteBatchRequest request;
    v1::RouteBatchResponse response;
    grpc::Status status;
    std::atomic<bool> done = false;
  };

  void Start(size_t max_calls, uint64_t max_bytes) {
    CoordinatorOptions options;
    options.tls.insecure = true;
    options.max_queued_routes = max_calls;
    options.max_queued_bytes = max_bytes;
    core_ = std::make_unique<CoordinatorCore>(options);
    service_ = std::make_unique<CoordinatorService>(*core_, executor_);
    auto server = GrpcServer::Start(
        {.address = "127.0.0.1:0", .credentials = grpc::InsecureServerCredentials(), .services = {service_.get()}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::Coordinator::NewStub(
        MakeChannel("127.0.0.1:" + std::to_string(server_->port()), grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    executor_.RunAll();
    for (const auto& batch : batches_) EXPECT_TRUE(Ended(*batch));
  }
  // Sends a batch of one request with `tokens` tokens.
  Batch& Send(int tokens) {
    Batch& batch = *batches_.emplace_back(std::make_unique<Batch>());
    v1::RouteRequest& request = *batch.request.add_requests();
    request.mutable_identity()->set_model("m");
    request.mutable_identity()->set_block_tokens(16);
    request.mutable_tokens()->mutable_ids()->Resize(tokens, 7);
    stub_->async()->RouteBatch(batch.context.get(), &batch.request, &batch.response,
                               [&batch](const grpc::Status& status) {
                                 batch.status = status;
                                 batch.done = true;
                               });
    return batch;
  }
  static bool Ended(const Batch& batch) {
    return Await(kTestPatience, [&] { return batch.done.load(); });
  }
  bool Queued(size_t count) {
    return Await(kTestPatience, [&] { return executor_.size() == count; });
  }
  double routes() const {
    double sum = 0;
    for (const char* outcome : {"local", "peer", "cold", "invalid", "unavailable", "failed", "lookup"}) {
      sum += core_->metrics.Counter("kvmesh_coordinator_routes_total", "Routes by outcome", {{"outcome", outcome}})
                 .Value();
    }
    return sum;
  }

  HeldExecutor executor_;
  std::unique_ptr<CoordinatorCore> core_;
  std::unique_ptr<CoordinatorService> service_;
  std::vector<std::unique_ptr<Batch>> batches_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

TEST_F(QueuedRoutesTest, OneMoreThanTheLimitIsRefused) {
  Start(2, 1 << 20);
  Batch& first = Send(32);
  Batch& second = Send(32);
  ASSERT_TRUE(Queued(2));
  const Batch& third = Send(32);
  ASSERT_TRUE(Ended(third));
  EXPECT_EQ(third.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(third.status.error_message(), "queued routes: the limit of 2 calls is reached");
  EXPECT_EQ(core_->call_metrics.routes_refused.Value(), 1);
  // Others pass meanwhile.
  v1::CoordinatorStatsResponse stats;
  EXPECT_TRUE(stub_->Stats(TestContext().get(), {}, &stats).ok());
  executor_.RunAll();
  for (const Batch* batch : {&first, &second}) {
    ASSERT_TRUE(Ended(*batch));
    EXPECT_TRUE(batch->status.ok());
    ASSERT_EQ(batch->response.results_size(), 1);
    EXPECT_EQ(batch->response.results(0).code(), static_cast<int>(absl::StatusCode::kUnavailable));
  }
  Send(32);
  EXPECT_TRUE(Queued(1));
}

TEST_F(QueuedRoutesTest, BytesOfQueuedRequestsAreBounded) {
  Start(100, 100'000);
  Send(20'000);  // 80,000 bytes and a little
  ASSERT_TRUE(Queued(1));
  const Batch& second = Send(20'000);
  ASSERT_TRUE(Ended(second));
  EXPECT_EQ(second.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(second.status.error_message(), "queued routes: the limit of 100000 bytes is reached");
  Send(1'000);
  EXPECT_TRUE(Queued(2));
}

TEST_F(QueuedRoutesTest, LongRoutesAreQueuedToo) {
  Start(1, 1 << 20);
  Send(32);
  ASSERT_TRUE(Queued(1));
  v1::RouteRequest request;
  request.mutable_identity()->set_model("m");
  request.mutable_identity()->set_block_tokens(16);
  request.mutable_tokens()->mutable_ids()->Resize(16385, 7);
  v1::RouteResponse response;
  const grpc::Status status = stub_->Route(TestContext().get(), request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("the limit of 1 calls"));
}

TEST_F(QueuedRoutesTest, CallsWhoseCallersHaveGoneAreNotRun) {
  Start(1, 1 << 20);
  // The server may hear of a cancellation after the call's turn has come: such a round is repeated.
  const bool dropped = Await(kTestPatience, [&] {
    Batch& batch = Send(32);
    EXPECT_TRUE(Queued(1));
    batch.context->TryCancel();
    EXPECT_TRUE(Ended(batch));
    EXPECT_EQ(batch.status.error_code(), grpc::StatusCode::CANCELLED);
    v1::CoordinatorStatsResponse stats;  // follows the cancellation on the same connection
    EXPECT_TRUE(stub_->Stats(TestContext().get(), {}, &stats).ok());
    const double before = routes();
    executor_.RunAll();
    if (core_->call_metrics.cancelled.Value() == 0) return false;
    EXPECT_EQ(routes(), before);
    return true;
  });
  EXPECT_TRUE(dropped);
  EXPECT_EQ(core_->call_metrics.cancelled.Value(), 1);
  Send(32);  // its place is free again
  EXPECT_TRUE(Queued(1));
}

}  // namespace
}  // namespace kvmesh
