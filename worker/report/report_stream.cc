#include "worker/report/report_stream.h"

#include <utility>

#include "kvstore/base/check.h"

namespace kvmesh {

ReportStream::ReportStream(std::shared_ptr<grpc::Channel> channel)
    : channel_(std::move(channel)), stub_(v1::Coordinator::NewStub(channel_)) {}

ReportStream::~ReportStream() { KVMESH_CHECK(!reader_.joinable(), "a report stream ends without Close"); }

void ReportStream::Open(std::function<void(const v1::ReportResponse&)> on_response, std::function<void()> on_end) {
  stream_ = stub_->Report(&context_);
  reader_ = std::thread([this, on_response = std::move(on_response), on_end = std::move(on_end)] {
    v1::ReportResponse response;
    while (stream_->Read(&response)) on_response(response);
    ended_ = true;
    on_end();
  });
}

bool ReportStream::Write(const v1::ReportRequest& request) { return stream_->Write(request); }

grpc::Status ReportStream::Close() {
  if (!ended_) Cancel();  // else its status is the coordinator's
  reader_.join();
  return stream_->Finish();
}

}  // namespace kvmesh
