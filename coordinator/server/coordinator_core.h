// The parts of one coordinator, wired; what the calls of the service work on.
#ifndef KVMESH_COORDINATOR_SERVER_COORDINATOR_CORE_H_
#define KVMESH_COORDINATOR_SERVER_COORDINATOR_CORE_H_

#include <atomic>
#include <string>

#include "coordinator/placement/placer.h"
#include "coordinator/prefix_index/literal_prefix_index.h"
#include "coordinator/registry/worker_registry.h"
#include "coordinator/report/command_board.h"
#include "coordinator/report/report_metrics.h"
#include "coordinator/report/report_session.h"
#include "coordinator/route/router.h"
#include "coordinator/server/call_metrics.h"
#include "coordinator/server/coordinator_metrics.h"
#include "coordinator/server/coordinator_options.h"
#include "coordinator/server/identity_cache.h"
#include "kvstore/service/metrics.h"

namespace kvmesh {

// Thread safe. Destroyed after everything that refers to it has ended.
struct CoordinatorCore {
  // REQUIRES: options.Validate().ok().
  explicit CoordinatorCore(const CoordinatorOptions& options);

  // Takes out lost workers and ends commands that are late. Call a few times a heartbeat interval.
  void Maintain();
  // "draining", "warming" until every registered worker has resynced once or the grace has passed, else empty.
  std::string NotReady() const;
  ReportContext report_context() {
    return {.registry = registry,
            .index = index,
            .commands = commands,
            .metrics = report_metrics,
            .coordinator = incarnation};
  }

  const CoordinatorOptions options;
  const Incarnation incarnation;
  const absl::Time started;
  Metrics metrics;
  CoordinatorMetrics counters;
  ReportMetrics report_metrics;
  CallMetrics call_metrics;
  LiteralPrefixIndex index;
  Placer placer;
  CommandBoard commands;
  WorkerRegistry registry;
  Router router;
  IdentityCache identities;
  std::atomic<bool> draining{false};

 private:
  std::atomic<bool> warmed_{false};
  CollectHook collect_hook_;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_COORDINATOR_CORE_H_
