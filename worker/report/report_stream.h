// The I/O of one report stream: blocking writes, and a thread that reads.
#ifndef KVMESH_WORKER_REPORT_REPORT_STREAM_H_
#define KVMESH_WORKER_REPORT_REPORT_STREAM_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "kvmesh/v1/coordinator.grpc.pb.h"

namespace kvmesh {

// Lifecycle: Open, Write any number of times, Close. Cancel may be called at any time, from any thread, before Open
// too, and ends what blocks; all else belongs to one thread.
class ReportStream {
 public:
  explicit ReportStream(std::shared_ptr<grpc::Channel> channel);
  // REQUIRES: closed, or never opened.
  ~ReportStream();

  // Starts the call and the reader, which passes on each response and, last, the end of the stream. May block until the
  // channel is connected or has failed to.
  void Open(std::function<void(const v1::ReportResponse&)> on_response, std::function<void()> on_end);
  // Blocks while the coordinator does not read. False: the stream has ended.
  bool Write(const v1::ReportRequest& request);
  void Cancel() { context_.TryCancel(); }
  // Cancels unless the coordinator has ended it, waits for the reader to end, and returns how the stream ended.
  grpc::Status Close();

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Coordinator::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ReportRequest, v1::ReportResponse>> stream_;
  std::atomic<bool> ended_{false};  // the reader has seen the end
  std::thread reader_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_REPORT_REPORT_STREAM_H_
