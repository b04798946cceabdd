// One message of raw bytes to any method of a gRPC server.
#ifndef KVMESH_TESTS_SUPPORT_RAW_CALL_H_
#define KVMESH_TESTS_SUPPORT_RAW_CALL_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace kvmesh {

struct RawAnswer {
  grpc::Status status;
  std::string first;  // the first message that came back
};

// `method`: "/package.Service/Method". Ends the request stream after `bytes`, and reads all that comes.
inline RawAnswer RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                         const std::string& bytes, absl::Duration timeout) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  if (ok) {
    const grpc::Slice slice(bytes);
    call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    queue.Next(&tag, &ok);
  }
  RawAnswer answer;
  for (bool first = true;; first = false) {
    grpc::ByteBuffer response;
    call->Read(&response, nullptr);
    queue.Next(&tag, &ok);
    if (!ok) break;
    grpc::Slice slice;
    if (first && response.DumpToSingleSlice(&slice).ok()) {
      answer.first.assign(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
  }
  call->Finish(&answer.status, nullptr);
  queue.Next(&tag, &ok);
  return answer;
}

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SUPPORT_RAW_CALL_H_
