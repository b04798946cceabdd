// The caller's trace: read from a call's metadata, and written when the call was slow.
#ifndef KVMESH_KVSTORE_SERVICE_TRACE_CONTEXT_H_
#define KVMESH_KVSTORE_SERVICE_TRACE_CONTEXT_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kvstore/base/clock.h"

namespace kvmesh {

// True for a W3C `traceparent`: version-traceid-parentid-flags in lower-case hex, neither id all zero. A version above
// 00 may carry more after the flags.
bool IsValidTraceParent(absl::string_view text);

// The call's `traceparent`; empty when absent, repeated or not valid.
std::string TraceParent(const grpc::ServerContextBase& context);

// Lives as long as a call's handler. When the call took at least `threshold`, the destructor logs one line with method,
// duration (ms), status and traceparent. An infinite threshold logs nothing. Not thread safe.
//
//   SlowCallLog call("coordinator", "Route", *context, slow);
//   return call.Finish(Route(*request, response));
class SlowCallLog {
 public:
  // `component` and `method` must outlive the object.
  SlowCallLog(absl::string_view component, absl::string_view method, const grpc::ServerContextBase& context,
              absl::Duration threshold, const Clock& clock = Clock::Real());
  ~SlowCallLog();
  SlowCallLog(const SlowCallLog&) = delete;
  SlowCallLog& operator=(const SlowCallLog&) = delete;

  // Notes the call's result and returns it as the handler's. Without it the line says status=UNKNOWN.
  grpc::Status Finish(const absl::Status& status);

 private:
  const absl::string_view component_;
  const absl::string_view method_;
  const absl::Duration threshold_;
  const Clock& clock_;
  const absl::Time start_;
  const std::string trace_parent_;
  absl::Status status_ = absl::UnknownError("");
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_SERVICE_TRACE_CONTEXT_H_
