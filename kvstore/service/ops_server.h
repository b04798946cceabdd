// The HTTP port of operators: liveness, readiness and metrics.
#ifndef KVMESH_KVSTORE_SERVICE_OPS_SERVER_H_
#define KVMESH_KVSTORE_SERVICE_OPS_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "kvstore/base/status.h"
#include "kvstore/service/metrics.h"

struct mg_context;

namespace kvmesh {

struct OpsServerOptions {
  std::string address;  // host:port or [v6]:port, IP addresses only; port 0 takes a free one
  // Why the process should get no traffic ("warming", "draining"); empty when ready. Null: always ready. Called from
  // several threads until the server is destroyed.
  std::function<std::string()> not_ready;
  int threads = 16;  // requests served at a time, 1 to 64; others wait, also for clients that send none
};

// GET (or HEAD) /healthz: 200 "ok" while the process lives. /readyz: 200 "ok", or 503 with the reason. /metrics:
// Metrics::Text. Other paths: 404; other methods: 405. Plain HTTP, one request a connection. Thread safe.
class OpsServer {
 public:
  // `metrics` must outlive the server. INVALID_ARGUMENT: a wrong address or thread count. UNAVAILABLE naming the
  // address: the port is taken, or the host is not this machine's.
  static absl::StatusOr<std::unique_ptr<OpsServer>> Start(OpsServerOptions options, Metrics& metrics);

  // Stops listening; returns when no request is being served.
  ~OpsServer();
  OpsServer(const OpsServer&) = delete;
  OpsServer& operator=(const OpsServer&) = delete;

  // The port listened on.
  int port() const { return port_; }

 private:
  friend struct OpsHandler;
  OpsServer(OpsServerOptions options, Metrics& metrics);

  const OpsServerOptions options_;
  Metrics& metrics_;
  mg_context* context_ = nullptr;
  std::string host_;
  int port_ = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_SERVICE_OPS_SERVER_H_
