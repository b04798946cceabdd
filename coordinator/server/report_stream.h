// The I/O of report streams: reads, the way out, the end. What messages mean is coordinator/report's.
#ifndef KVMESH_COORDINATOR_SERVER_REPORT_STREAM_H_
#define KVMESH_COORDINATOR_SERVER_REPORT_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/report/report_session.h"
#include "coordinator/server/call_metrics.h"
#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/executor.h"
#include "kvstore/base/mutex.h"

namespace kvmesh {

using ReportReactorBase = grpc::ServerBidiReactor<v1::ReportRequest, v1::ReportResponse>;

struct ReportStreamsOptions {
  size_t max_streams = 0;
  absl::Duration registration_timeout;
  const Clock* clock = nullptr;  // of the timeout
};

// All streams of one server. Thread safe.
//
// A stream reads one message, applies it on the executor, queues the answers, then reads the next: a worker that sends
// faster than it is applied is held back by flow control. Answers and commands leave through a bounded queue, one write
// at a time; successive acknowledgements merge. No lock is held across a read or a write, and a worker that stops
// reading is cut off when its queue is full.
class ReportStreams {
 public:
  static constexpr size_t kMaxQueued = 1024;

  // All must outlive the streams. `executor` runs one closure per stream at a time.
  ReportStreams(const ReportStreamsOptions& options, const ReportContext& context, Executor& executor,
                CallMetrics& metrics)
      : options_(options), context_(context), executor_(executor), metrics_(metrics) {}

  // Serves a new stream; the reactor deletes itself. It ends at once with UNAVAILABLE after Close, and with
  // RESOURCE_EXHAUSTED naming the limit when max_streams are open.
  ReportReactorBase* Open(grpc::CallbackServerContext& context);
  // A stream that ends at once with `status`.
  static ReportReactorBase* Refuse(const absl::Status& status);
  // Cancels the streams on which no registration came in time. Call a few times a timeout.
  void EndUnregistered();
  // Cancels all streams; they end soon after.
  void Close();

 private:
  class Stream;
  struct Outbox;

  absl::Status Add(const std::shared_ptr<Outbox>& outbox);
  void Remove(const std::shared_ptr<Outbox>& outbox);

  const ReportStreamsOptions options_;
  const ReportContext context_;
  Executor& executor_;
  CallMetrics& metrics_;
  Mutex mu_;
  std::set<std::shared_ptr<Outbox>> open_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_REPORT_STREAM_H_
