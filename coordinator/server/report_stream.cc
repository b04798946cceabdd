#include "coordinator/server/report_stream.h"

#include <grpcpp/server_context.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/service/grpc_status.h"
#include "kvstore/service/log.h"

namespace kvmesh {

// The way out of one stream. Shared with the command board, whose sink may outlive the stream.
struct ReportStreams::Outbox {
  explicit Outbox(absl::Time opened) : opened(opened) {}

  const absl::Time opened;
  std::atomic<bool> registered{false};  // or given up
  Mutex mu;
  Stream* stream ABSL_GUARDED_BY(mu) = nullptr;  // null when it has ended
  std::deque<v1::ReportResponse> queue ABSL_GUARDED_BY(mu);
  bool writing ABSL_GUARDED_BY(mu) = false;
  bool ending ABSL_GUARDED_BY(mu) = false;  // nothing more is queued; Finish follows the last write
  bool finished ABSL_GUARDED_BY(mu) = false;
  int cancelling ABSL_GUARDED_BY(mu) = 0;   // calls into the stream that must return before it may finish
  bool broken ABSL_GUARDED_BY(mu) = false;  // a write failed, or the queue was full
  absl::Status status ABSL_GUARDED_BY(mu);
};

class ReportStreams::Stream final : public ReportReactorBase {
 public:
  Stream(ReportStreams& streams, grpc::CallbackServerContext& context)
      : streams_(streams), context_(context), outbox_(std::make_shared<Outbox>(streams.options_.clock->Now())) {
    {
      MutexLock lock(outbox_->mu);
      outbox_->stream = this;
    }
    session_ = std::make_unique<ReportSession>(streams_.context_, [outbox = outbox_](v1::ReportResponse response) {
      return Push(outbox, std::move(response));
    });
    if (const absl::Status added = streams_.Add(outbox_); !added.ok()) {
      End(added);
      return;
    }
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      End(absl::OkStatus());
      return;
    }
    streams_.executor_.Schedule([this] { Apply(); });
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(outbox_->mu);
      outbox_->writing = false;
      if (!ok) outbox_->broken = true;
    }
    Advance(outbox_);
  }

  void OnDone() override {
    {
      MutexLock lock(outbox_->mu);
      outbox_->stream = nullptr;
    }
    streams_.Remove(outbox_);
    delete this;
  }

  // Cancelling ends the read, and with it the stream. Ignored when the stream has ended. REQUIRES: no lock is held,
  // since gRPC may run callbacks on this thread.
  static void Cancel(const std::shared_ptr<Outbox>& outbox) {
    Stream* stream = nullptr;
    {
      MutexLock lock(outbox->mu);
      if (outbox->stream == nullptr || outbox->finished) return;
      stream = outbox->stream;
      ++outbox->cancelling;
    }
    stream->context_.TryCancel();
    {
      MutexLock lock(outbox->mu);
      --outbox->cancelling;
    }
    Advance(outbox);
  }

 private:
  void Apply() {
    std::vector<v1::ReportResponse> responses;
    const absl::Status status = session_->OnMessage(request_, responses);
    for (v1::ReportResponse& response : responses) Push(outbox_, std::move(response));
    if (status.ok()) {
      outbox_->registered = true;  // the first message that is taken is a registration
      StartRead(&request_);
    } else {
      Log(LogLevel::kWarning, "coordinator", "report stream ended",
          {{"peer", context_.peer()}, {"error", status.ToString()}});
      End(status);
    }
  }

  // Called once, when no read is outstanding: nothing else of this stream can run but writes.
  void End(const absl::Status& status) {
    session_.reset();
    {
      MutexLock lock(outbox_->mu);
      outbox_->ending = true;
      outbox_->status = status;
    }
    Advance(outbox_);
  }

  // False: the stream has ended.
  static bool Push(const std::shared_ptr<Outbox>& outbox, v1::ReportResponse response) {
    bool full = false;
    {
      MutexLock lock(outbox->mu);
      if (outbox->stream == nullptr || outbox->ending || outbox->broken) return false;
      const bool merges = response.kind_case() == v1::ReportResponse::kAppliedSequence && !outbox->queue.empty() &&
                          outbox->queue.back().kind_case() == v1::ReportResponse::kAppliedSequence;
      if (merges) {
        outbox->queue.back() = std::move(response);
      } else if (outbox->queue.size() < kMaxQueued) {
        outbox->queue.push_back(std::move(response));
      } else {
        outbox->broken = full = true;
      }
    }
    if (full) {  // the worker has stopped reading
      Cancel(outbox);
      return false;
    }
    Advance(outbox);
    return true;
  }

  // Starts the next write, or the end. The call into gRPC is made without the lock: `writing` and `finished` keep
  // others from a second one, and the stream from being deleted before it.
  static void Advance(const std::shared_ptr<Outbox>& outbox) {
    Stream* stream = nullptr;
    bool write = false;
    absl::Status status;
    {
      MutexLock lock(outbox->mu);
      if (outbox->stream == nullptr || outbox->writing || outbox->finished) return;
      stream = outbox->stream;
      if (outbox->broken) outbox->queue.clear();
      if (!outbox->queue.empty()) {
        stream->response_ = std::move(outbox->queue.front());
        outbox->queue.pop_front();
        outbox->writing = write = true;
      } else if (outbox->ending && outbox->cancelling == 0) {
        outbox->finished = true;
        status = outbox->status;
      } else {
        return;
      }
    }
    if (write) {
      stream->StartWrite(&stream->response_);
    } else {
      stream->Finish(ToGrpcStatus(status));
    }
  }

  ReportStreams& streams_;
  grpc::CallbackServerContext& context_;
  const std::shared_ptr<Outbox> outbox_;
  std::unique_ptr<ReportSession> session_;  // touched by one read at a time
  v1::ReportRequest request_;
  v1::ReportResponse response_;  // being written
};

ReportReactorBase* ReportStreams::Open(grpc::CallbackServerContext& context) { return new Stream(*this, context); }

ReportReactorBase* ReportStreams::Refuse(const absl::Status& status) {
  class Refused final : public ReportReactorBase {
   public:
    explicit Refused(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
    void OnDone() override { delete this; }
  };
  return new Refused(status);
}

void ReportStreams::EndUnregistered() {
  const absl::Time now = options_.clock->Now();
  std::vector<std::shared_ptr<Outbox>> late;
  {
    MutexLock lock(mu_);
    for (const auto& outbox : open_) {
      if (now - outbox->opened < options_.registration_timeout) continue;
      if (!outbox->registered.exchange(true)) late.push_back(outbox);
    }
  }
  for (const auto& outbox : late) {
    metrics_.unregistered.Increment();
    Log(LogLevel::kWarning, "coordinator", "report stream ended: no registration came in time");
    Stream::Cancel(outbox);
  }
}

void ReportStreams::Close() {
  std::vector<std::shared_ptr<Outbox>> open;
  {
    MutexLock lock(mu_);
    closed_ = true;
    open.assign(open_.begin(), open_.end());
  }
  for (const auto& outbox : open) Stream::Cancel(outbox);
}

absl::Status ReportStreams::Add(const std::shared_ptr<Outbox>& outbox) {
  MutexLock lock(mu_);
  if (closed_) return absl::UnavailableError("the coordinator is shutting down");
  if (open_.size() >= options_.max_streams) {
    metrics_.streams_refused.Increment();
    return absl::ResourceExhaustedError(
        absl::StrCat("report: the limit of ", options_.max_streams, " open streams is reached"));
  }
  open_.insert(outbox);
  metrics_.report_streams.Set(static_cast<double>(open_.size()));
  return absl::OkStatus();
}

void ReportStreams::Remove(const std::shared_ptr<Outbox>& outbox) {
  MutexLock lock(mu_);
  open_.erase(outbox);
  metrics_.report_streams.Set(static_cast<double>(open_.size()));
}

}  // namespace kvmesh
