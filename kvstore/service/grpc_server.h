// One listening gRPC server with the limits that every kvmesh process has, and the channels that dial one.
#ifndef KVMESH_KVSTORE_SERVICE_GRPC_SERVER_H_
#define KVMESH_KVSTORE_SERVICE_GRPC_SERVER_H_

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kvstore/base/status.h"

namespace kvmesh {

// Largest message, both ways.
inline constexpr int kMaxMessageBytes = 64 << 20;

struct GrpcServerOptions {
  std::string address;  // host:port, [v6]:port; port 0 takes a free one
  std::shared_ptr<grpc::ServerCredentials> credentials;
  std::vector<grpc::Service*> services;  // must outlive the server
  // Threads for blocking handlers: each call or stream in progress holds one. Above that a call gets
  // RESOURCE_EXHAUSTED.
  int max_threads = 256;
};

// Lifecycle: Start, serve, Shutdown, destroy. Health checking and reflection are served beside the services. The port
// is never shared with another server (no SO_REUSEPORT). gRPC's own messages go to Log. Thread safe.
class GrpcServer {
 public:
  // Listens and serves. INVALID_ARGUMENT: an address that is not host:port, no credentials. UNAVAILABLE naming the
  // address: the port is taken, or the host is not this machine's.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options);

  // Shutdown with no grace.
  ~GrpcServer();

  // The port listened on.
  int port() const { return port_; }

  // What the health service reports for the whole server; serving at first.
  void SetServing(bool serving);

  // Takes no new calls, lets running ones end for up to `grace` (at most an hour), then cancels them; returns when all
  // handlers have returned. Later calls do nothing.
  void Shutdown(absl::Duration grace);

 private:
  GrpcServer(std::unique_ptr<grpc::Server> server, int port);

  const std::unique_ptr<grpc::Server> server_;
  const int port_;
};

// A channel of its own connection to `address`: no connection is shared between channels, so that heartbeats don't
// queue behind payloads. Reconnects after 100 ms to 1 s; a dead peer is noticed within 15 s of silence on a running
// call. Never goes through an HTTP proxy. Returns at once; the first call connects.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_SERVICE_GRPC_SERVER_H_
