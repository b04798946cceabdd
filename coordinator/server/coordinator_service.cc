#include "coordinator/server/coordinator_service.h"

#include "absl/strings/str_cat.h"
#include "coordinator/server/route_call.h"
#include "kvstore/service/grpc_status.h"
#include "kvstore/service/tls.h"
#include "kvstore/service/trace_context.h"

namespace kvmesh {
namespace {

constexpr absl::string_view kComponent = "coordinator";
constexpr int kMaxBatch = 256;
// Prompts above this are chained on the executor, about a millisecond of hashing.
constexpr int kInlineTokens = 16384;

// Messages kept for reuse: 64 of at most 256 KiB of keys.
constexpr size_t kPooledMessages = 64;
constexpr size_t kPooledKeyBytes = 256 << 10;

bool WorthKeeping(const v1::RouteRequest& request, const v1::RouteResponse&) {
  return request.block_keys().capacity() <= kPooledKeyBytes && request.tokens().ids_size() <= kInlineTokens;
}

}  // namespace

CoordinatorService::CoordinatorService(CoordinatorCore& core, Executor& executor)
    : core_(core),
      executor_(executor),
      streams_(core.report_context(), executor),
      route_messages_(kPooledMessages, WorthKeeping) {
  SetMessageAllocatorFor_Route(&route_messages_);
}

absl::StatusOr<CallTenant> CoordinatorService::Tenant(const grpc::ServerContextBase& context) const {
  if (core_.options.tls.insecure) return CallTenant();
  absl::StatusOr<std::string> tenant = PeerTenant(context);
  if (!tenant.ok()) return tenant.status();
  return CallTenant(*std::move(tenant));
}

grpc::Status CoordinatorService::RunRouteCall(const grpc::ServerContextBase& context, const v1::RouteRequest& request,
                                              v1::RouteResponse& response) {
  SlowCallLog log(kComponent, "Route", context, core_.options.slow, *core_.options.clock);
  const absl::StatusOr<CallTenant> tenant = Tenant(context);
  if (!tenant.ok()) return log.Finish(tenant.status());
  return log.Finish(RunRoute(core_, request, *tenant, response));
}

grpc::ServerUnaryReactor* CoordinatorService::Route(grpc::CallbackServerContext* context,
                                                    const v1::RouteRequest* request, v1::RouteResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (request->tokens().ids_size() <= kInlineTokens) {
    reactor->Finish(RunRouteCall(*context, *request, *response));
  } else {
    executor_.Schedule(
        [this, context, request, response, reactor] { reactor->Finish(RunRouteCall(*context, *request, *response)); });
  }
  return reactor;
}

grpc::Status CoordinatorService::RunBatchCall(const grpc::ServerContextBase& context,
                                              const v1::RouteBatchRequest& request, v1::RouteBatchResponse& response) {
  SlowCallLog log(kComponent, "RouteBatch", context, core_.options.slow, *core_.options.clock);
  const absl::StatusOr<CallTenant> tenant = Tenant(context);
  if (!tenant.ok()) return log.Finish(tenant.status());
  if (request.requests_size() > kMaxBatch) {
    return log.Finish(absl::InvalidArgumentError(absl::StrCat("requests: more than ", kMaxBatch)));
  }
  for (const v1::RouteRequest& one : request.requests()) {
    v1::RouteBatchResponse::Result& result = *response.add_results();
    const absl::Status status = RunRoute(core_, one, *tenant, *result.mutable_response());
    if (status.ok()) continue;
    result.clear_response();
    result.set_code(static_cast<int>(status.code()));
    result.set_message(std::string(status.message()));
  }
  return log.Finish(absl::OkStatus());
}

grpc::ServerUnaryReactor* CoordinatorService::RouteBatch(grpc::CallbackServerContext* context,
                                                         const v1::RouteBatchRequest* request,
                                                         v1::RouteBatchResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  executor_.Schedule(
      [this, context, request, response, reactor] { reactor->Finish(RunBatchCall(*context, *request, *response)); });
  return reactor;
}

template <class Call>
grpc::Status CoordinatorService::RunAdmin(absl::string_view method, grpc::ServerContext& context, Call call) {
  SlowCallLog log(kComponent, method, context, core_.options.slow, *core_.options.clock);
  const absl::StatusOr<CallTenant> tenant = Tenant(context);
  if (!tenant.ok()) return log.Finish(tenant.status());
  const std::function<bool()> cancelled = [&context] { return context.IsCancelled(); };
  return log.Finish(call(AdminCalls{core_, *tenant, cancelled}));
}

grpc::Status CoordinatorService::Heartbeat(grpc::ServerContext* context, const v1::HeartbeatRequest* request,
                                           v1::HeartbeatResponse* response) {
  return RunAdmin("Heartbeat", *context, [&](const AdminCalls& calls) { return calls.Heartbeat(*request, *response); });
}

grpc::Status CoordinatorService::Complete(grpc::ServerContext* context, const v1::CompleteRequest* request,
                                          v1::CompleteResponse*) {
  return RunAdmin("Complete", *context, [&](const AdminCalls& calls) { return calls.Complete(*request); });
}

grpc::Status CoordinatorService::ListWorkers(grpc::ServerContext* context, const v1::ListWorkersRequest*,
                                             v1::ListWorkersResponse* response) {
  return RunAdmin("ListWorkers", *context, [&](const AdminCalls& calls) { return calls.ListWorkers(*response); });
}

grpc::Status CoordinatorService::Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                                       v1::DrainResponse*) {
  return RunAdmin("Drain", *context, [&](const AdminCalls& calls) { return calls.Drain(*request); });
}

grpc::Status CoordinatorService::Pin(grpc::ServerContext* context, const v1::PinRequest* request,
                                     v1::PinResponse* response) {
  return RunAdmin("Pin", *context, [&](const AdminCalls& calls) { return calls.Pin(*request, *response); });
}

grpc::Status CoordinatorService::Unpin(grpc::ServerContext* context, const v1::UnpinRequest* request,
                                       v1::UnpinResponse*) {
  return RunAdmin("Unpin", *context, [&](const AdminCalls& calls) { return calls.Unpin(*request); });
}

grpc::Status CoordinatorService::Prefetch(grpc::ServerContext* context, const v1::PrefetchRequest* request,
                                          v1::PrefetchResponse* response) {
  return RunAdmin("Prefetch", *context, [&](const AdminCalls& calls) { return calls.Prefetch(*request, *response); });
}

grpc::Status CoordinatorService::ClearIdentity(grpc::ServerContext* context, const v1::ClearIdentityRequest* request,
                                               v1::ClearIdentityResponse* response) {
  return RunAdmin("ClearIdentity", *context,
                  [&](const AdminCalls& calls) { return calls.ClearIdentity(*request, *response); });
}

grpc::Status CoordinatorService::Stats(grpc::ServerContext* context, const v1::CoordinatorStatsRequest*,
                                       v1::CoordinatorStatsResponse* response) {
  return RunAdmin("Stats", *context, [&](const AdminCalls& calls) { return calls.Stats(*response); });
}

}  // namespace kvmesh
