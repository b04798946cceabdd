// kvmesh-coordinator: reads flags, wires a CoordinatorServer, waits for SIGTERM.
//
// Shutdown: not ready -> report streams end -> running calls end, for up to --drain-ms -> exit 0.
#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/server/coordinator_server.h"
#include "kvstore/block/secrets.h"
#include "kvstore/service/flags.h"
#include "kvstore/service/log.h"
#include "kvstore/service/members.h"
#include "kvstore/service/signals.h"
#include "kvstore/service/tls.h"

namespace kvmesh {
namespace {

struct Flags {
  CoordinatorOptions options;
  std::string secret_file;
  uint64_t heartbeat_ms = 1000;
  uint64_t slow_ms = 1000;
  uint64_t warm_ms = 15000;
  uint64_t drain_ms = 10000;
};

void AddFlags(CLI::App& app, Flags& flags) {
  CoordinatorOptions& o = flags.options;
  app.add_option("--listen", o.listen, "host:port of the Coordinator service; port 0 takes a free one");
  app.add_option("--ops-listen", o.ops_listen, "ip:port of /healthz, /readyz and /metrics (default: none)");
  AddTlsFlags(app, o.tls);
  AddMemberFlag(app, o.members);
  app.add_option("--cluster-secret-file", flags.secret_file, "Raw bytes shared by all servers (default: empty secret)");
  app.add_option("--index-bytes", o.index.max_bytes, "Memory of the prefix index; new coverage is shed above it");
  app.add_option("--max-workers", o.registry.max_workers, "Live workers at most");
  app.add_option("--heartbeat-ms", flags.heartbeat_ms, "Interval at which workers send heartbeats");
  app.add_option("--missed-heartbeats", o.registry.missed_limit, "A worker is lost after this many intervals");
  app.add_option("--slow-ms", flags.slow_ms, "Calls at least this long are logged");
  app.add_option("--warm-ms", flags.warm_ms, "Ready at the latest this long after the start");
  app.add_option("--drain-ms", flags.drain_ms, "Time that running calls have to end after SIGTERM");
}

absl::Status Complete(Flags& flags) {
  CoordinatorOptions& o = flags.options;
  if (!flags.secret_file.empty()) {
    absl::StatusOr<std::string> secret = ReadSecretFile(flags.secret_file);
    if (!secret.ok()) {
      return absl::Status(secret.status().code(), absl::StrCat("--cluster-secret-file: ", secret.status().message()));
    }
    o.cluster_secret = *std::move(secret);
  }
  o.registry.heartbeat_interval = absl::Milliseconds(flags.heartbeat_ms);
  o.slow = absl::Milliseconds(flags.slow_ms);
  o.warm_grace = absl::Milliseconds(flags.warm_ms);
  return o.Validate();
}

int Main(int argc, char** argv) {
  BlockSignals();
  CLI::App app("kvmesh-coordinator: knows which worker holds which prefix, and places requests.", "kvmesh-coordinator");
  Flags flags;
  AddFlags(app, flags);
  ParseFlags(app, argc, argv);
  ExitOnUsageError(app, Complete(flags));
  absl::StatusOr<std::unique_ptr<CoordinatorServer>> server = CoordinatorServer::Start(flags.options);
  if (!server.ok()) {
    Log(LogLevel::kError, "coordinator", "cannot start", {{"error", server.status().ToString()}});
    return 1;
  }
  WaitForShutdown(nullptr);
  (*server)->Stop(absl::Milliseconds(flags.drain_ms));
  return 0;
}

}  // namespace
}  // namespace kvmesh

int main(int argc, char** argv) { return kvmesh::Main(argc, argv); }
