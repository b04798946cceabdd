// The Coordinator service: decodes the call's surroundings, calls, encodes the status.
#ifndef KVMESH_COORDINATOR_SERVER_COORDINATOR_SERVICE_H_
#define KVMESH_COORDINATOR_SERVER_COORDINATOR_SERVICE_H_

#include "coordinator/server/admin_calls.h"
#include "coordinator/server/coordinator_core.h"
#include "coordinator/server/message_pool.h"
#include "coordinator/server/report_stream.h"
#include "kvmesh/v1/coordinator.grpc.pb.h"
#include "kvstore/base/executor.h"

namespace kvmesh {

// Route answers on gRPC's own thread, unless it has many tokens to hash; batches and reports run on the executor; the
// other calls block a thread of the server while they wait for workers. Thread safe.
class CoordinatorService final
    : public v1::Coordinator::WithCallbackMethod_Route<v1::Coordinator::WithCallbackMethod_RouteBatch<
          v1::Coordinator::WithCallbackMethod_Report<v1::Coordinator::Service>>> {
 public:
  // Both must outlive it.
  CoordinatorService(CoordinatorCore& core, Executor& executor);

  // Ends the report streams and takes no new ones.
  void CloseStreams() { streams_.Close(); }

  grpc::ServerUnaryReactor* Route(grpc::CallbackServerContext* context, const v1::RouteRequest* request,
                                  v1::RouteResponse* response) override;
  grpc::ServerUnaryReactor* RouteBatch(grpc::CallbackServerContext* context, const v1::RouteBatchRequest* request,
                                       v1::RouteBatchResponse* response) override;
  ReportReactorBase* Report(grpc::CallbackServerContext* context) override { return streams_.Open(*context); }

  grpc::Status Heartbeat(grpc::ServerContext* context, const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override;
  grpc::Status Complete(grpc::ServerContext* context, const v1::CompleteRequest* request,
                        v1::CompleteResponse* response) override;
  grpc::Status ListWorkers(grpc::ServerContext* context, const v1::ListWorkersRequest* request,
                           v1::ListWorkersResponse* response) override;
  grpc::Status Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                     v1::DrainResponse* response) override;
  grpc::Status Pin(grpc::ServerContext* context, const v1::PinRequest* request, v1::PinResponse* response) override;
  grpc::Status Unpin(grpc::ServerContext* context, const v1::UnpinRequest* request,
                     v1::UnpinResponse* response) override;
  grpc::Status Prefetch(grpc::ServerContext* context, const v1::PrefetchRequest* request,
                        v1::PrefetchResponse* response) override;
  grpc::Status ClearIdentity(grpc::ServerContext* context, const v1::ClearIdentityRequest* request,
                             v1::ClearIdentityResponse* response) override;
  grpc::Status Stats(grpc::ServerContext* context, const v1::CoordinatorStatsRequest* request,
                     v1::CoordinatorStatsResponse* response) override;

 private:
  // UNAUTHENTICATED: TLS without a tenant.
  absl::StatusOr<CallTenant> Tenant(const grpc::ServerContextBase& context) const;
  grpc::Status RunRouteCall(const grpc::ServerContextBase& context, const v1::RouteRequest& request,
                            v1::RouteResponse& response);
  grpc::Status RunBatchCall(const grpc::ServerContextBase& context, const v1::RouteBatchRequest& request,
                            v1::RouteBatchResponse& response);
  // Runs `call` with an AdminCalls, and logs it when it was slow.
  template <class Call>
  grpc::Status RunAdmin(absl::string_view method, grpc::ServerContext& context, Call call);

  CoordinatorCore& core_;
  Executor& executor_;
  ReportStreams streams_;
  MessagePool<v1::RouteRequest, v1::RouteResponse> route_messages_;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_COORDINATOR_SERVICE_H_
