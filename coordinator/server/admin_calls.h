// All calls but Route and Report: decode, call, encode. No gRPC.
#ifndef KVMESH_COORDINATOR_SERVER_ADMIN_CALLS_H_
#define KVMESH_COORDINATOR_SERVER_ADMIN_CALLS_H_

#include <functional>

#include "coordinator/server/coordinator_core.h"
#include "coordinator/server/decode.h"
#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/base/status.h"

namespace kvmesh {

// Statuses as documented at the service's calls; a malformed request is INVALID_ARGUMENT naming the field. Pin, Unpin,
// Prefetch and ClearIdentity wait for workers, at most the options' command_timeout or until `cancelled`; UNAVAILABLE
// or DEADLINE_EXCEEDED naming a worker that did not do it: the call may be repeated. The others never wait. Pins belong
// to the tenant: another's pin of the same id is another pin. Thread safe.
struct AdminCalls {
  CoordinatorCore& core;
  const CallTenant& tenant;
  const std::function<bool()>& cancelled;

  absl::Status Heartbeat(const v1::HeartbeatRequest& request, v1::HeartbeatResponse& response) const;
  absl::Status Complete(const v1::CompleteRequest& request) const;
  absl::Status ListWorkers(v1::ListWorkersResponse& response) const;
  absl::Status Drain(const v1::DrainRequest& request) const;
  // A Pin that fails takes back what some workers pinned already, as far as they can be reached: else it ends with the
  // pin's time.
  absl::Status Pin(const v1::PinRequest& request, v1::PinResponse& response) const;
  absl::Status Unpin(const v1::UnpinRequest& request) const;
  absl::Status Prefetch(const v1::PrefetchRequest& request, v1::PrefetchResponse& response) const;
  absl::Status ClearIdentity(const v1::ClearIdentityRequest& request, v1::ClearIdentityResponse& response) const;
  absl::Status Stats(v1::CoordinatorStatsResponse& response) const;

 private:
  // Sends `command` to all of `workers`; the sum of blocks, or the first failure apart from NOT_FOUND.
  absl::StatusOr<uint64_t> SendToAll(const std::vector<std::shared_ptr<WorkerEntry>>& workers,
                                     const v1::Command& command) const;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_ADMIN_CALLS_H_
