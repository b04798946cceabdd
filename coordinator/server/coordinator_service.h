// The Coordinator service: decodes the call's surroundings, calls, encodes the status.
#ifndef KVMESH_COORDINATOR_SERVER_COORDINATOR_SERVICE_H_
#define KVMESH_COORDINATOR_SERVER_COORDINATOR_SERVICE_H_

#include <cstdint>
#include <functional>

#include "coordinator/server/admin_calls.h"
#include "coordinator/server/coordinator_core.h"
#include "coordinator/server/message_pool.h"
#include "coordinator/server/places.h"
#include "coordinator/server/report_stream.h"
#include "kvmesh/v1/coordinator.grpc.pb.h"
#include "kvstore/base/executor.h"

namespace kvmesh {

// Calls that never wait for a worker, so that they pass however many calls do.
using CoordinatorPromptCalls =
    v1::Coordinator::WithCallbackMethod_Heartbeat<v1::Coordinator::WithCallbackMethod_Complete<
        v1::Coordinator::WithCallbackMethod_ListWorkers<v1::Coordinator::WithCallbackMethod_Drain<
            v1::Coordinator::WithCallbackMethod_Stats<v1::Coordinator::Service>>>>>;

// Route answers on gRPC's own thread, unless it has many tokens to hash, and so do Heartbeat, Complete, ListWorkers,
// Drain and Stats; batches, long routes and reports run on the executor; Pin, Unpin, Prefetch and ClearIdentity block a
// thread of the server each while they wait for workers. What waits for the executor or for workers is bounded by the
// options: RESOURCE_EXHAUSTED above that. Thread safe.
class CoordinatorService final
    : public v1::Coordinator::WithCallbackMethod_Route<v1::Coordinator::WithCallbackMethod_RouteBatch<
          v1::Coordinator::WithCallbackMethod_Report<CoordinatorPromptCalls>>> {
 public:
  // Both must outlive it.
  CoordinatorService(CoordinatorCore& core, Executor& executor);

  // Ends the report streams and takes no new ones.
  void CloseStreams() { streams_.Close(); }
  // Ends those that do not register. Call a few times a registration timeout.
  void EndUnregisteredStreams() { streams_.EndUnregistered(); }

  grpc::ServerUnaryReactor* Route(grpc::CallbackServerContext* context, const v1::RouteRequest* request,
                                  v1::RouteResponse* response) override;
  grpc::ServerUnaryReactor* RouteBatch(grpc::CallbackServerContext* context, const v1::RouteBatchRequest* request,
                                       v1::RouteBatchResponse* response) override;
  ReportReactorBase* Report(grpc::CallbackServerContext* context) override;

  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context, const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* Complete(grpc::CallbackServerContext* context, const v1::CompleteRequest* request,
                                     v1::CompleteResponse* response) override;
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context, const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context, const v1::CoordinatorStatsRequest* request,
                                  v1::CoordinatorStatsResponse* response) override;

  grpc::Status Pin(grpc::ServerContext* context, const v1::PinRequest* request, v1::PinResponse* response) override;
  grpc::Status Unpin(grpc::ServerContext* context, const v1::UnpinRequest* request,
                     v1::UnpinResponse* response) override;
  grpc::Status Prefetch(grpc::ServerContext* context, const v1::PrefetchRequest* request,
                        v1::PrefetchResponse* response) override;
  grpc::Status ClearIdentity(grpc::ServerContext* context, const v1::ClearIdentityRequest* request,
                             v1::ClearIdentityResponse* response) override;

 private:
  // Whose calls a method takes: of all tenants, or of the cluster's own programs and operators.
  enum class Callers { kAll, kMembers };

  // UNAUTHENTICATED: TLS without a tenant.
  absl::StatusOr<CallTenant> Tenant(const grpc::ServerContextBase& context) const;
  grpc::Status RunRouteCall(const grpc::ServerContextBase& context, const v1::RouteRequest& request,
                            v1::RouteResponse& response);
  grpc::Status RunBatchCall(const grpc::ServerContextBase& context, const v1::RouteBatchRequest& request,
                            v1::RouteBatchResponse& response);
  // Runs `run` on the executor and finishes `reactor` with what it returns; CANCELLED, and not run, when the caller has
  // gone by then. RESOURCE_EXHAUSTED at once: too much is queued. `bytes`: of the request.
  void RunQueued(const grpc::CallbackServerContext& context, uint64_t bytes, std::function<grpc::Status()> run,
                 grpc::ServerUnaryReactor& reactor);
  // Runs `call` with an AdminCalls, and logs it when it was slow.
  template <class Call>
  grpc::Status RunAdmin(absl::string_view method, Callers callers, const grpc::ServerContextBase& context, Call call);
  // The same at once, on gRPC's own thread.
  template <class Call>
  grpc::ServerUnaryReactor* Answer(absl::string_view method, Callers callers, grpc::CallbackServerContext& context,
                                   Call call);
  // The same for a call that waits for workers, if there is a place for it. `bytes`: of the request.
  template <class Call>
  grpc::Status Wait(absl::string_view method, const grpc::ServerContext& context, uint64_t bytes, Call call);

  CoordinatorCore& core_;
  Executor& executor_;
  ReportStreams streams_;
  Places queued_routes_;
  Places waiting_calls_;
  MessagePool<v1::RouteRequest, v1::RouteResponse> route_messages_;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_COORDINATOR_SERVICE_H_
