#include "coordinator/server/report_stream.h"

#include <grpcpp/server_context.h>

#include <utility>

#include "kvstore/service/grpc_status.h"
#include "kvstore/service/log.h"

namespace kvmesh {

// The way out of one stream. Shared with the command board, whose sink may outlive the stream.
struct ReportStreams::Outbox {
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
      : streams_(streams), context_(context), outbox_(std::make_shared<Outbox>()) {
    {
      MutexLock lock(outbox_->mu);
      outbox_->stream = this;
    }
    session_ = std::make_unique<ReportSession>(streams_.context_, [outbox = outbox_](v1::ReportResponse response) {
      return Push(outbox, std::move(response));
    });
    if (!streams_.Add(outbox_)) {
      End(absl::UnavailableError("the coordinator is shutting down"));
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

void ReportStreams::Close() {
  std::vector<std::shared_ptr<Outbox>> open;
  {
    MutexLock lock(mu_);
    closed_ = true;
    open.assign(open_.begin(), open_.end());
  }
  for (const auto& outbox : open) Stream::Cancel(outbox);
}

bool ReportStreams::Add(const std::shared_ptr<Outbox>& outbox) {
  MutexLock lock(mu_);
  if (closed_) return false;
  open_.insert(outbox);
  return true;
}

void ReportStreams::Remove(const std::shared_ptr<Outbox>& outbox) {
  MutexLock lock(mu_);
  open_.erase(outbox);
}

}  // namespace kvmesh
