#include "coordinator/server/coordinator_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/server/route_call.h"
#include "kvstore/service/grpc_status.h"
#include "kvstore/service/members.h"
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
      streams_({.max_streams = 2 * size_t{core.options.registry.max_workers},
                .registration_timeout = core.options.registration_timeout,
                .clock = core.options.clock},
               core.report_context(), executor, core.call_metrics),
      queued_routes_({.what = "queued routes",
                      .max_calls = core.options.max_queued_routes,
                      .max_bytes = core.options.max_queued_bytes},
                     core.call_metrics.routes_refused),
      waiting_calls_({.what = "calls that wait for workers",
                      .max_calls = core.options.max_waiting_calls,
                      .max_bytes = core.options.max_queued_bytes},
                     core.call_metrics.waiting_refused),
      route_messages_(kPooledMessages, WorthKeeping) {
  SetMessageAllocatorFor_Route(&route_messages_);
}

absl::StatusOr<CallTenant> CoordinatorService::Tenant(const grpc::ServerContextBase& context) const {
  if (core_.options.tls.insecure) return CallTenant();
  absl::StatusOr<std::string> tenant = PeerTenant(context);
  if (!tenant.ok()) return tenant.status();
  return CallTenant(*std::move(tenant));
}

void CoordinatorService::RunQueued(const grpc::CallbackServerContext& context, uint64_t bytes,
                                   std::function<grpc::Status()> run, grpc::ServerUnaryReactor& reactor) {
  if (const absl::Status entered = queued_routes_.Enter(bytes); !entered.ok()) {
    reactor.Finish(ToGrpcStatus(entered));
    return;
  }
  executor_.Schedule([this, &context, bytes, run = std::move(run), &reactor] {
    grpc::Status status = grpc::Status::CANCELLED;
    if (context.IsCancelled()) {
      core_.call_metrics.cancelled.Increment();
    } else {
      status = run();
    }
    queued_routes_.Leave(bytes);
    reactor.Finish(std::move(status));
  });
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
    RunQueued(
        *context, request->ByteSizeLong(),
        [this, context, request, response] { return RunRouteCall(*context, *request, *response); }, *reactor);
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
    if (context.IsCancelled()) {
      core_.call_metrics.cancelled.Increment();
      return log.Finish(absl::CancelledError("the caller has gone"));
    }
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
  RunQueued(
      *context, request->ByteSizeLong(),
      [this, context, request, response] { return RunBatchCall(*context, *request, *response); }, *reactor);
  return reactor;
}

ReportReactorBase* CoordinatorService::Report(grpc::CallbackServerContext* context) {
  const absl::Status allowed = CheckMember(*context, core_.options.members, core_.options.tls);
  return allowed.ok() ? streams_.Open(*context) : ReportStreams::Refuse(allowed);
}

template <class Call>
grpc::Status CoordinatorService::RunAdmin(absl::string_view method, Callers callers,
                                          const grpc::ServerContextBase& context, Call call) {
  SlowCallLog log(kComponent, method, context, core_.options.slow, *core_.options.clock);
  const absl::StatusOr<CallTenant> tenant = Tenant(context);
  if (!tenant.ok()) return log.Finish(tenant.status());
  if (callers == Callers::kMembers) {
    const absl::Status allowed = CheckMember(context, core_.options.members, core_.options.tls);
    if (!allowed.ok()) return log.Finish(allowed);
  }
  const std::function<bool()> cancelled = [&context] { return context.IsCancelled(); };
  return log.Finish(call(AdminCalls{core_, *tenant, cancelled}));
}

template <class Call>
grpc::ServerUnaryReactor* CoordinatorService::Answer(absl::string_view method, Callers callers,
                                                     grpc::CallbackServerContext& context, Call call) {
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(RunAdmin(method, callers, context, std::move(call)));
  return reactor;
}

template <class Call>
grpc::Status CoordinatorService::Wait(absl::string_view method, const grpc::ServerContext& context, uint64_t bytes,
                                      Call call) {
  const absl::Status entered = waiting_calls_.Enter(bytes);
  if (!entered.ok()) return ToGrpcStatus(entered);
  const grpc::Status status = RunAdmin(method, Callers::kAll, context, std::move(call));
  waiting_calls_.Leave(bytes);
  return status;
}

grpc::ServerUnaryReactor* CoordinatorService::Heartbeat(grpc::CallbackServerContext* context,
                                                        const v1::HeartbeatRequest* request,
                                                        v1::HeartbeatResponse* response) {
  return Answer("Heartbeat", Callers::kMembers, *context,
                [&](const AdminCalls& calls) { return calls.Heartbeat(*request, *response); });
}

grpc::ServerUnaryReactor* CoordinatorService::Complete(grpc::CallbackServerContext* context,
                                                       const v1::CompleteRequest* request, v1::CompleteResponse*) {
  return Answer("Complete", Callers::kAll, *context, [&](const AdminCalls& calls) { return calls.Complete(*request); });
}

grpc::ServerUnaryReactor* CoordinatorService::ListWorkers(grpc::CallbackServerContext* context,
                                                          const v1::ListWorkersRequest*,
                                                          v1::ListWorkersResponse* response) {
  return Answer("ListWorkers", Callers::kMembers, *context,
                [&](const AdminCalls& calls) { return calls.ListWorkers(*response); });
}

grpc::ServerUnaryReactor* CoordinatorService::Drain(grpc::CallbackServerContext* context,
                                                    const v1::DrainRequest* request, v1::DrainResponse*) {
  return Answer("Drain", Callers::kMembers, *context, [&](const AdminCalls& calls) { return calls.Drain(*request); });
}

grpc::ServerUnaryReactor* CoordinatorService::Stats(grpc::CallbackServerContext* context,
                                                    const v1::CoordinatorStatsRequest*,
                                                    v1::CoordinatorStatsResponse* response) {
  return Answer("Stats", Callers::kAll, *context, [&](const AdminCalls& calls) { return calls.Stats(*response); });
}

grpc::Status CoordinatorService::Pin(grpc::ServerContext* context, const v1::PinRequest* request,
                                     v1::PinResponse* response) {
  return Wait("Pin", *context, request->ByteSizeLong(),
              [&](const AdminCalls& calls) { return calls.Pin(*request, *response); });
}

grpc::Status CoordinatorService::Unpin(grpc::ServerContext* context, const v1::UnpinRequest* request,
                                       v1::UnpinResponse*) {
  return Wait("Unpin", *context, request->ByteSizeLong(),
              [&](const AdminCalls& calls) { return calls.Unpin(*request); });
}

grpc::Status CoordinatorService::Prefetch(grpc::ServerContext* context, const v1::PrefetchRequest* request,
                                          v1::PrefetchResponse* response) {
  return Wait("Prefetch", *context, request->ByteSizeLong(),
              [&](const AdminCalls& calls) { return calls.Prefetch(*request, *response); });
}

grpc::Status CoordinatorService::ClearIdentity(grpc::ServerContext* context, const v1::ClearIdentityRequest* request,
                                               v1::ClearIdentityResponse* response) {
  return Wait("ClearIdentity", *context, request->ByteSizeLong(),
              [&](const AdminCalls& calls) { return calls.ClearIdentity(*request, *response); });
}

}  // namespace kvmesh
