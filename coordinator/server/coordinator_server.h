// A whole coordinator in one object: for main.cc, tests and replays.
#ifndef KVMESH_COORDINATOR_SERVER_COORDINATOR_SERVER_H_
#define KVMESH_COORDINATOR_SERVER_COORDINATOR_SERVER_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "coordinator/server/coordinator_options.h"
#include "kvstore/base/executor.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"
#include "kvstore/service/grpc_server.h"
#include "kvstore/service/ops_server.h"

namespace kvmesh {

struct CoordinatorCore;
class CoordinatorService;

// Lifecycle: Start, serve, (BeginDrain), Stop, destroy. Several may live in one process. Thread safe.
class CoordinatorServer {
 public:
  // Listens and serves. INVALID_ARGUMENT naming the option. UNAVAILABLE naming the address that is taken. NOT_FOUND or
  // PERMISSION_DENIED naming a TLS file that can't be read.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(CoordinatorOptions options);
  // Stop with no grace.
  ~CoordinatorServer();

  // host:port that serves gRPC: the host of `listen`, the port in use.
  const std::string& address() const { return address_; }
  int port() const { return grpc_->port(); }
  // 0 without `ops_listen`.
  int ops_port() const { return ops_ == nullptr ? 0 : ops_->port(); }
  // As /readyz says it: empty, "warming" or "draining".
  std::string NotReady() const;
  // As /metrics says it.
  std::string MetricsText();

  // Not ready from now on, so that no new clients come; serves on.
  void BeginDrain();
  // Drains, ends the report streams, lets running calls end for up to `grace`, then cancels them. Later calls do
  // nothing.
  void Stop(absl::Duration grace);

 private:
  CoordinatorServer(std::unique_ptr<CoordinatorCore> core);
  absl::Status Listen();
  void MaintainUntilStopped();

  const std::unique_ptr<CoordinatorCore> core_;
  std::unique_ptr<ThreadPool> executor_;
  std::unique_ptr<CoordinatorService> service_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<OpsServer> ops_;
  std::string address_;

  Mutex mu_;
  CondVar wake_;
  bool stop_called_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;  // maintenance ends
  std::thread maintenance_;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_COORDINATOR_SERVER_H_
