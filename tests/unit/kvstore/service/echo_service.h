// A gRPC service of one method over raw bytes, so that these tests need no generated code.
#ifndef KVMESH_TESTS_UNIT_KVSTORE_SERVICE_ECHO_SERVICE_H_
#define KVMESH_TESTS_UNIT_KVSTORE_SERVICE_ECHO_SERVICE_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/method_handler.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/impl/codegen/service_type.h>
#include <grpcpp/support/byte_buffer.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kvstore/service/grpc_status.h"

namespace kvmesh {

inline constexpr char kEchoMethod[] = "/kvmesh.test.Echo/Call";

inline grpc::ByteBuffer ToByteBuffer(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

inline std::string ToString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string text;
  if (!buffer.Dump(&slices).ok()) return text;
  for (const grpc::Slice& slice : slices) text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

// Answers a call with what `handler` writes, or with its error.
class EchoService : public grpc::Service {
 public:
  using Handler = std::function<absl::Status(grpc::ServerContext& context, const std::string& in, std::string& out)>;

  explicit EchoService(Handler handler) : handler_(std::move(handler)) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        kEchoMethod, grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::RpcMethodHandler<EchoService, grpc::ByteBuffer, grpc::ByteBuffer, grpc::ByteBuffer,
                                             grpc::ByteBuffer>(
            [](EchoService* service, grpc::ServerContext* context, const grpc::ByteBuffer* request,
               grpc::ByteBuffer* response) {
              std::string out;
              const absl::Status status = service->handler_(*context, ToString(*request), out);
              *response = ToByteBuffer(out);
              return ToGrpcStatus(status);
            },
            this)));
  }

 private:
  const Handler handler_;
};

// One blocking call with `text`; `prepare` may change its context.
inline absl::Status CallEcho(grpc::Channel& channel, const std::string& text, std::string& out,
                             std::chrono::milliseconds timeout = std::chrono::seconds(20),
                             const std::function<void(grpc::ClientContext&)>& prepare = nullptr) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  if (prepare) prepare(context);
  const grpc::ByteBuffer request = ToByteBuffer(text);
  grpc::ByteBuffer response;
  const grpc::internal::RpcMethod method(kEchoMethod, grpc::internal::RpcMethod::NORMAL_RPC);
  const grpc::Status status =
      grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer, grpc::ByteBuffer, grpc::ByteBuffer>(
          &channel, method, &context, request, &response);
  out = ToString(response);
  return FromGrpcStatus(status);
}

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_KVSTORE_SERVICE_ECHO_SERVICE_H_
