#include "worker/server/worker_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kvstore/service/log.h"
#include "kvstore/service/members.h"
#include "kvstore/wire/protocol.h"
#include "kvstore/wire/wire.h"
#include "worker/transport/grpc/grpc_transport.h"

namespace kvmesh {
namespace {

// Threads for calls, beside the one that each session holds.
constexpr int kCallThreads = 256;
constexpr absl::Duration kHousekeepingInterval = absl::Milliseconds(200);
// What a flush to disk may take at shutdown.
constexpr absl::Duration kFlushTime = absl::Seconds(20);

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerServer>> WorkerServer::Start(const WorkerOptions& options) {
  KVMESH_RETURN_IF_ERROR(ValidateWorkerOptions(options));
  auto server = std::unique_ptr<WorkerServer>(new WorkerServer(options));
  KVMESH_RETURN_IF_ERROR(server->StartServing());
  KVMESH_RETURN_IF_ERROR(server->StartReporting());
  KVMESH_RETURN_IF_ERROR(server->StartOps());
  Log(LogLevel::kInfo, "worker", "serving",
      {{"id", options.worker_id}, {"address", server->address_}, {"ops_port", server->ops_port()}});
  return server;
}

WorkerServer::WorkerServer(const WorkerOptions& options)
    : options_(options), incarnation_(NewIncarnation(RandomSource::Real())) {}

absl::Status WorkerServer::StartServing() {
  if (options_.tls.insecure) Log(LogLevel::kWarning, "worker", "no TLS: all callers are one trusted user");
  WarnWithoutMembers("worker", options_.members, options_.tls);
  if (options_.cluster_secret.empty()) Log(LogLevel::kWarning, "worker", "the cluster secret is empty");
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> channel = MakeChannelCredentials(options_.tls);
  if (!channel.ok()) return channel.status();
  credentials_ = *std::move(channel);
  absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> credentials = MakeServerCredentials(options_.tls);
  if (!credentials.ok()) return credentials.status();

  std::vector<std::unique_ptr<Transport>> transports;
  GrpcTransport::Options transport;
  transport.make_channel = [this](const std::string& address) { return MakeChannel(address, credentials_); };
  transport.receiver_id = options_.worker_id;
  transport.receiver_incarnation = incarnation_;
  transports.push_back(std::make_unique<GrpcTransport>(transport));
  absl::StatusOr<std::unique_ptr<WorkerCore>> core = WorkerCore::Create(options_, incarnation_, std::move(transports));
  if (!core.ok()) return core.status();
  core_ = *std::move(core);

  BlockServer::Options serve;
  for (uint32_t group = 0; core_->StoreOf(group) != nullptr; ++group) serve.stores.push_back(core_->StoreOf(group));
  serve.worker_id = options_.worker_id;
  serve.incarnation = incarnation_;
  serve.ticket_key = DeriveTicketKey(options_.cluster_secret);
  serve.clock = options_.clock;
  block_server_ = std::make_unique<BlockServer>(std::move(serve));
  fetch_server_ = std::make_unique<FetchServer>(FetchServer::Options{.blocks = block_server_.get()});
  service_ = std::make_unique<WorkerService>(*core_, *block_server_, *fetch_server_);
  absl::StatusOr<std::unique_ptr<GrpcServer>> server =
      GrpcServer::Start({.address = options_.listen,
                         .credentials = *credentials,
                         .services = {service_.get()},
                         .max_threads = static_cast<int>(options_.sequences.max_sessions) + kCallThreads});
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  const std::string host = options_.listen.substr(0, options_.listen.rfind(':'));
  address_ = options_.advertise.empty() ? absl::StrCat(host, ":", server_->port()) : options_.advertise;

  housekeeping_ = std::thread([this] { RunHousekeeping(); });
  return absl::OkStatus();
}

absl::Status WorkerServer::StartReporting() {
  command_runner_ = std::make_unique<CommandRunner>(*core_, [this](bool draining) { server_->SetServing(!draining); });
  const auto make_channel = [this](const std::string& address) { return MakeChannel(address, credentials_); };
  for (const std::string& coordinator : options_.coordinators) {
    Reporter::Options report;
    report.coordinator_address = coordinator;
    report.make_channel = make_channel;
    report.store = &core_->store();
    report.worker_info = [this] { return Info(); };
    report.handler = command_runner_.get();
    report.executor = &commands_;
    reporters_.push_back(std::make_unique<Reporter>(std::move(report)));
    Heartbeater::Options heartbeat;
    heartbeat.coordinator_address = coordinator;
    heartbeat.make_channel = make_channel;
    heartbeat.load = [this] { return Load(); };
    heartbeat.reporter = reporters_.back().get();
    heartbeaters_.push_back(std::make_unique<Heartbeater>(std::move(heartbeat)));
  }
  return absl::OkStatus();
}

absl::Status WorkerServer::StartOps() {
  collect_ = core_->metrics().OnCollect([this] {
    core_->worker_metrics().Update(core_->GetBooks(), block_server_->counters().served_bytes,
                                   core_->sequences().open_sequences());
  });
  if (!options_.ops_listen.empty()) {
    absl::StatusOr<std::unique_ptr<OpsServer>> ops = OpsServer::Start(
        {.address = options_.ops_listen, .not_ready = [this] { return NotReady(); }}, core_->metrics());
    if (!ops.ok()) return ops.status();
    ops_ = *std::move(ops);
  }
  return absl::OkStatus();
}

v1::WorkerInfo WorkerServer::Info() const {
  const BlockLayout& layout = core_->store().device().layout();
  v1::WorkerInfo info;
  info.set_worker_id(options_.worker_id);
  info.set_incarnation(incarnation_.ToString());
  info.set_address(address_);
  info.set_protocol_version(kProtocolVersion);
  info.set_layout_fingerprint(core_->store().layout_fingerprint().ToString());
  info.set_block_tokens(static_cast<uint32_t>(layout.block_tokens));
  info.set_block_bytes(static_cast<uint64_t>(layout.block_bytes));
  info.set_prefill_tokens_per_second(options_.prefill_tokens_per_second);
  info.set_host_bytes_per_second(options_.host_bytes_per_second);
  info.set_disk_bytes_per_second(options_.disk_bytes_per_second);
  info.set_peer_bytes_per_second(options_.peer_bytes_per_second);
  info.set_draining(core_->draining());
  info.set_boundaries(core_->boundary_rule());
  if (core_->generator() != nullptr) IdentityToProto(core_->OwnIdentity("", ""), *info.mutable_model_identity());
  return info;
}

v1::HeartbeatRequest WorkerServer::Load() const {
  v1::HeartbeatRequest request;
  request.set_worker_id(options_.worker_id);
  request.set_incarnation(incarnation_.ToString());
  request.set_draining(core_->draining());
  request.set_prefill_tokens_per_second(options_.prefill_tokens_per_second);
  if (const Generator* generator = core_->generator()) {
    request.set_queued_tokens(generator->queued_tokens());
    request.set_running_requests(generator->runs());
    const double measured = generator->prefill_tokens_per_second();
    if (measured > 0) request.set_prefill_tokens_per_second(measured);
  }
  return request;
}

std::string WorkerServer::NotReady() const {
  if (core_->draining()) return "draining";
  for (const auto& reporter : reporters_) {
    if (reporter->registration() > 0) return "";
  }
  return reporters_.empty() ? "" : "warming";
}

absl::Status WorkerServer::WaitReported(absl::Duration timeout) {
  const uint64_t sequence = core_->store().events().last();
  const absl::Time deadline = absl::Now() + timeout;
  for (size_t i = 0; i < reporters_.size(); ++i) {
    // A coordinator that has applied nothing may just not have answered yet.
    if (heartbeaters_[i]->WaitAnswered(1, deadline - absl::Now()) &&
        reporters_[i]->WaitApplied(sequence, deadline - absl::Now())) {
      continue;
    }
    return absl::DeadlineExceededError(
        absl::StrCat("coordinator ", options_.coordinators[i], " has not applied event ", sequence));
  }
  return absl::OkStatus();
}

void WorkerServer::RunHousekeeping() {
  MutexLock lock(mu_);
  while (!stopping_) {
    lock.Unlock();
    core_->Housekeep();
    service_->calls().CancelExpired(options_.clock->Now());
    lock.Lock();
    if (!stopping_) stop_changed_.WaitFor(lock, kHousekeepingInterval);
  }
}

void WorkerServer::Shutdown(absl::Duration grace) {
  {
    MutexLock lock(mu_);
    if (stopping_) return;
    stopping_ = true;
  }
  stop_changed_.NotifyAll();
  if (core_ != nullptr) core_->BeginStop();
  if (server_ != nullptr) {
    server_->SetServing(false);
    service_->calls().CancelSessions();
    server_->Shutdown(grace);
  }
  if (housekeeping_.joinable()) housekeeping_.join();
  if (core_ != nullptr) {
    core_->sequences().CloseAll();
    core_->FlushToDisk(options_.clock->Now() + std::min(kFlushTime, grace));
  }
  ops_.reset();
  heartbeaters_.clear();
  reporters_.clear();
}

WorkerServer::~WorkerServer() { Shutdown(absl::ZeroDuration()); }

}  // namespace kvmesh
