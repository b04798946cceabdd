// A cluster as its clients see it: coordinators to ask, workers to call.
#ifndef KVMESH_CLIENT_CLIENT_H_
#define KVMESH_CLIENT_CLIENT_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "kvmesh/v1/coordinator.grpc.pb.h"
#include "kvmesh/v1/worker.grpc.pb.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"
#include "kvstore/block/cache_identity.h"
#include "kvstore/block/lossy_formats.h"
#include "kvstore/block/secrets.h"
#include "kvstore/service/tls.h"

namespace kvmesh {

struct ClientOptions {
  std::vector<std::string> coordinators;  // host:port each, in order of preference
  TlsOptions tls;
  // Known: prompts are routed by keys, so that no token leaves the client. Unknown: by tokens.
  std::optional<TenantSecret> tenant_secret;
  absl::Duration timeout = absl::Seconds(10);  // of each call to a coordinator
};

// Thread safe. Every call returns the server's status; a call that finds a coordinator UNAVAILABLE, or silent for
// `timeout`, asks the next one.
class Client {
 public:
  // INVALID_ARGUMENT: no coordinator, or TLS flags. Connects at the first call.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);

  struct RouteOptions {
    std::string worker_id;  // place there and nowhere else
    uint32_t top_k = 0;
    bool no_lookup = false;  // places by load alone: the prompt counts as held nowhere, and as no request of the cache
    LossyFormats accepted;   // copies with other lossy formats count as absent
    bool lookup_only = false;  // places nothing and counts as no request; the answer has no placement id and no tickets
  };
  absl::StatusOr<v1::RouteResponse> Route(const CacheIdentity& identity, std::span<const uint32_t> tokens,
                                          const RouteOptions& options);
  // Tells how a placement ended, to whichever coordinator made it; NOT_FOUND when it is forgotten already.
  absl::Status Complete(const std::string& placement_id, const v1::HitTokens& hits, bool failed);
  absl::StatusOr<v1::ListWorkersResponse> ListWorkers();
  absl::StatusOr<v1::CoordinatorStatsResponse> Stats();

  // A stub for the worker at `address`, its channel kept.
  std::unique_ptr<v1::Worker::Stub> WorkerAt(const std::string& address);

  const ClientOptions& options() const { return options_; }

 private:
  Client(const ClientOptions& options, std::shared_ptr<grpc::ChannelCredentials> credentials);

  // Runs `call` against one coordinator after the other until one answers.
  template <class Response>
  absl::StatusOr<Response> Ask(
      const std::function<grpc::Status(v1::Coordinator::Stub&, grpc::ClientContext&, Response&)>& call,
      bool not_found_asks_next = false);

  const ClientOptions options_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::vector<std::unique_ptr<v1::Coordinator::Stub>> coordinators_;
  Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<grpc::Channel>> workers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_CLIENT_CLIENT_H_
