#include "coordinator/server/coordinator_server.h"

#include <algorithm>
#include <utility>

#include "coordinator/server/coordinator_core.h"
#include "coordinator/server/coordinator_service.h"
#include "kvstore/service/host_port.h"
#include "kvstore/service/log.h"
#include "kvstore/service/members.h"

namespace kvmesh {
namespace {

// Between two looks at heartbeats and commands, in real time whatever the clock.
constexpr absl::Duration kMaxMaintenancePeriod = absl::Milliseconds(100);

}  // namespace

CoordinatorServer::CoordinatorServer(std::unique_ptr<CoordinatorCore> core) : core_(std::move(core)) {}

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(CoordinatorOptions options) {
  KVMESH_RETURN_IF_ERROR(options.Validate());
  auto core = std::make_unique<CoordinatorCore>(std::move(options));
  std::unique_ptr<CoordinatorServer> server(new CoordinatorServer(std::move(core)));
  KVMESH_RETURN_IF_ERROR(server->Listen());
  return server;
}

absl::Status CoordinatorServer::Listen() {
  const CoordinatorOptions& options = core_->options;
  const auto credentials = MakeServerCredentials(options.tls);
  if (!credentials.ok()) return credentials.status();
  executor_ = std::make_unique<ThreadPool>(options.threads);
  service_ = std::make_unique<CoordinatorService>(*core_, *executor_);
  auto grpc = GrpcServer::Start({.address = options.listen, .credentials = *credentials, .services = {service_.get()}});
  if (!grpc.ok()) return grpc.status();
  grpc_ = *std::move(grpc);
  HostPort address = *ParseHostPort(options.listen);
  address.port = static_cast<uint16_t>(grpc_->port());
  address_ = address.ToString();
  maintenance_ = std::thread([this] { MaintainUntilStopped(); });
  if (!options.ops_listen.empty()) {
    auto ops =
        OpsServer::Start({.address = options.ops_listen, .not_ready = [this] { return NotReady(); }}, core_->metrics);
    if (!ops.ok()) return ops.status();
    ops_ = *std::move(ops);
  }
  WarnWithoutMembers("coordinator", options.members, options.tls);
  if (options.cluster_secret.empty()) {
    Log(LogLevel::kWarning, "coordinator", "the cluster secret is empty: fit for one trusted user only");
  }
  Log(LogLevel::kInfo, "coordinator", "listening",
      {{"address", address_}, {"ops_port", ops_port()}, {"incarnation", core_->incarnation.ToHex()}});
  return absl::OkStatus();
}

CoordinatorServer::~CoordinatorServer() { Stop(absl::ZeroDuration()); }

std::string CoordinatorServer::NotReady() const { return core_->NotReady(); }

std::string CoordinatorServer::MetricsText() { return core_->metrics.Text(); }

void CoordinatorServer::BeginDrain() {
  if (core_->draining.exchange(true)) return;
  if (grpc_ != nullptr) grpc_->SetServing(false);
  Log(LogLevel::kInfo, "coordinator", "draining");
}

void CoordinatorServer::Stop(absl::Duration grace) {
  {
    MutexLock lock(mu_);
    if (stop_called_) return;
    stop_called_ = true;
  }
  BeginDrain();
  if (service_ != nullptr) service_->CloseStreams();
  if (grpc_ != nullptr) grpc_->Shutdown(grace);
  // Not before: calls that still end wait for commands, which maintenance times out.
  {
    MutexLock lock(mu_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (maintenance_.joinable()) maintenance_.join();
  ops_.reset();
  executor_.reset();
  Log(LogLevel::kInfo, "coordinator", "stopped");
}

void CoordinatorServer::MaintainUntilStopped() {
  const absl::Duration period = std::min(kMaxMaintenancePeriod, core_->options.registry.heartbeat_interval / 4);
  MutexLock lock(mu_);
  while (!stopping_) {
    lock.Unlock();
    core_->Maintain();
    service_->EndUnregisteredStreams();
    lock.Lock();
    if (!stopping_) wake_.WaitFor(lock, period);
  }
}

}  // namespace kvmesh
