#include "kvstore/service/grpc_server.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "kvstore/service/host_port.h"
#include "kvstore/service/log.h"

namespace kvmesh {
namespace {

// A client pings a silent connection this often and waits this long; a server must allow the first.
constexpr int kKeepaliveTimeMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 5'000;
constexpr int kMinPingIntervalMs = 5'000;
static_assert(kMinPingIntervalMs < kKeepaliveTimeMs);

constexpr int kConnectTimeoutMs = 5'000;
constexpr int kInitialBackoffMs = 100;
constexpr int kMaxBackoffMs = 1'000;

constexpr int kMaxConcurrentStreams = 4096;  // per connection

// gRPC looks at a connection that no call waits on every 5 s only, however short the back-off: after a restart of the
// server, calls that fail at once would do so for 5 s more. It reads the interval once, when the first of its objects
// is made, hence before main. An operator's value stands.
[[maybe_unused]] const int kBackupPollSet = setenv("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "100", 0);

// gRPC's own messages, in the form of ours.
void LogGrpcMessage(gpr_log_func_args* args) {
  const LogLevel level = args->severity == GPR_LOG_SEVERITY_ERROR  ? LogLevel::kError
                         : args->severity == GPR_LOG_SEVERITY_INFO ? LogLevel::kInfo
                                                                   : LogLevel::kDebug;
  Log(level, "grpc", args->message, {{"file", args->file}, {"line", args->line}});
}

// All three are process-wide; the last two act on builders made later.
void SetUpGrpc() {
  static const bool done = [] {
    // Held for the life of the process: gRPC's own shutdown may wait 10 s for a poller's timer.
    grpc_init();
    gpr_set_log_function(LogGrpcMessage);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options) {
  if (const auto address = ParseHostPort(options.address); !address.ok()) return address.status();
  if (options.credentials == nullptr) return absl::InvalidArgumentError("listen credentials: missing");
  SetUpGrpc();

  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.address, options.credentials, &port);
  for (grpc::Service* service : options.services) builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxConcurrentStreams);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  grpc::ResourceQuota quota("kvmesh");
  quota.SetMaxThreads(options.max_threads);
  builder.SetResourceQuota(quota);

  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options.address, ": the port is taken, or the host is not this machine's"));
  }
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(server), port));
}

GrpcServer::GrpcServer(std::unique_ptr<grpc::Server> server, int port) : server_(std::move(server)), port_(port) {}

GrpcServer::~GrpcServer() { Shutdown(absl::ZeroDuration()); }

void GrpcServer::SetServing(bool serving) {
  if (grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(serving);
  }
}

void GrpcServer::Shutdown(absl::Duration grace) {
  const absl::Duration bounded = std::clamp(grace, absl::ZeroDuration(), absl::Hours(1));
  server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(bounded));
  server_->Wait();
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  SetUpGrpc();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kInitialBackoffMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxBackoffMs);
  // Despite its name, this one is how long one attempt to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace kvmesh
