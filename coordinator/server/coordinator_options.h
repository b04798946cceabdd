// Everything a coordinator is told.
#ifndef KVMESH_COORDINATOR_SERVER_COORDINATOR_OPTIONS_H_
#define KVMESH_COORDINATOR_SERVER_COORDINATOR_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "coordinator/placement/cost_model.h"
#include "coordinator/prefix_index/literal_prefix_index.h"
#include "coordinator/registry/worker_registry.h"
#include "coordinator/route/router.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/random.h"
#include "kvstore/base/status.h"
#include "kvstore/service/members.h"
#include "kvstore/service/tls.h"

namespace kvmesh {

struct CoordinatorOptions {
  std::string listen = "127.0.0.1:7400";  // host:port; port 0 takes a free one
  std::string ops_listen;                 // ip:port of /healthz, /readyz and /metrics; empty: none
  TlsOptions tls;
  MemberNames members;         // who may report, drain and list, under TLS; empty: any certificate
  std::string cluster_secret;  // empty: one trusted user

  PrefixIndexOptions index;  // max_workers is set to hold those of `registry`, old incarnations included
  RegistryOptions registry;
  PlacementOptions placement;
  RouterOptions router;

  // Calls that take as long are logged.
  absl::Duration slow = absl::Seconds(1);
  // Ready at the latest this long after the start, however many workers still warm.
  absl::Duration warm_grace = absl::Seconds(15);
  // How long a worker has to answer a command (pin, prefetch, clear).
  absl::Duration command_timeout = absl::Seconds(10);
  // Threads that apply reports and route what takes long (token ids, batches).
  size_t threads = 4;
  // Routes that wait for such a thread or run on it; more are refused.
  size_t max_queued_routes = 256;
  // Calls that wait for workers (pin, unpin, prefetch, clear); more are refused.
  size_t max_waiting_calls = 64;
  // Bytes of the requests of either; what goes beyond is refused.
  uint64_t max_queued_bytes = uint64_t{256} << 20;
  // A report stream that has not registered by then is ended. There are at most 2 streams for each of
  // registry.max_workers: one that breaks may be there still when the next one comes.
  absl::Duration registration_timeout = absl::Seconds(10);

  // Liveness, tickets and readiness; must agree with the workers' within seconds.
  const Clock* clock = &Clock::Real();
  // Load of placements in flight; null: `clock`. A replay moves this one along a trace.
  const Clock* placement_clock = nullptr;
  RandomSource* random = &RandomSource::Real();

  // INVALID_ARGUMENT naming the field.
  absl::Status Validate() const;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_COORDINATOR_OPTIONS_H_
