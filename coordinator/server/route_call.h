// One Route: decode, route, count, encode. No gRPC.
#ifndef KVMESH_COORDINATOR_SERVER_ROUTE_CALL_H_
#define KVMESH_COORDINATOR_SERVER_ROUTE_CALL_H_

#include "coordinator/server/coordinator_core.h"
#include "coordinator/server/decode.h"
#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/base/status.h"

namespace kvmesh {

// Statuses as documented at Coordinator.Route. Thread safe.
absl::Status RunRoute(CoordinatorCore& core, const v1::RouteRequest& request, const CallTenant& tenant,
                      v1::RouteResponse& response);

// Fills one message of `sources` per span.
void EncodeSources(const RouteAnswer& answer, google::protobuf::RepeatedPtrField<v1::SourceSpan>& sources);

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_ROUTE_CALL_H_
