// A running worker: its core, gRPC server, report streams, heartbeats and HTTP pages.
#ifndef KVMESH_WORKER_SERVER_WORKER_SERVER_H_
#define KVMESH_WORKER_SERVER_WORKER_SERVER_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "kvstore/base/executor.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"
#include "kvstore/service/grpc_server.h"
#include "kvstore/service/ops_server.h"
#include "worker/report/heartbeater.h"
#include "worker/report/reporter.h"
#include "worker/server/command_runner.h"
#include "worker/server/worker_core.h"
#include "worker/server/worker_options.h"
#include "worker/server/worker_service.h"
#include "worker/transport/grpc/fetch_server.h"
#include "worker/transport/serve/block_server.h"

namespace kvmesh {

// Thread safe. Life: Start, serve, Shutdown (or the destructor, without grace).
class WorkerServer {
 public:
  // INVALID_ARGUMENT naming the option. UNAVAILABLE: an address is taken. Errors of model and disk name the file.
  static absl::StatusOr<std::unique_ptr<WorkerServer>> Start(const WorkerOptions& options);
  ~WorkerServer();

  // Not ready and draining at once; running calls have `grace` to end; memory is flushed to disk; reports end.
  void Shutdown(absl::Duration grace);

  WorkerCore& core() { return *core_; }
  // host:port as peers reach it.
  const std::string& address() const { return address_; }
  int ops_port() const { return ops_ == nullptr ? 0 : ops_->port(); }

  // Waits until every coordinator has applied all events so far. DEADLINE_EXCEEDED.
  absl::Status WaitReported(absl::Duration timeout);

 private:
  explicit WorkerServer(const WorkerOptions& options);
  absl::Status StartServing();
  absl::Status StartReporting();
  absl::Status StartOps();
  v1::WorkerInfo Info() const;
  v1::HeartbeatRequest Load() const;
  std::string NotReady() const;
  void RunHousekeeping();

  const WorkerOptions options_;
  const Incarnation incarnation_;
  std::string address_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::unique_ptr<WorkerCore> core_;
  std::unique_ptr<BlockServer> block_server_;
  std::unique_ptr<FetchServer> fetch_server_;
  std::unique_ptr<WorkerService> service_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<OpsServer> ops_;
  CollectHook collect_;
  ThreadPool commands_{2};
  std::unique_ptr<CommandRunner> command_runner_;
  std::vector<std::unique_ptr<Reporter>> reporters_;
  std::vector<std::unique_ptr<Heartbeater>> heartbeaters_;

  Mutex mu_;
  CondVar stop_changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread housekeeping_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_SERVER_WORKER_SERVER_H_
