#include "worker/transport/grpc/block_stream_service.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/method_handler.h>
#include <grpcpp/support/sync_stream.h>

namespace kvmesh {

BlockStreamService::BlockStreamService() {
  Serve("GetBlocks", &BlockStreamService::StreamGetBlocks);
  Serve("FetchBlocks", &BlockStreamService::StreamFetchBlocks);
}

// gRPC lets a method whose handler is replaced read its request from a stream. The generated base has registered the
// methods in the order of the proto.
template <class Request>
void BlockStreamService::Serve(const char* name, Method<Request> method) {
  using Stream = grpc::ServerReaderWriter<grpc::ByteBuffer, Request>;
  const auto handler = [method](BlockStreamService* service, grpc::ServerContext* context, Stream* stream) {
    Request request;
    if (!stream->Read(&request)) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "request: missing, or does not decode");
    }
    return (service->*method)(*context, request,
                              [stream](const grpc::ByteBuffer& piece) { return stream->Write(piece); });
  };
  const auto* worker = Request::descriptor()->file()->FindServiceByName("Worker");
  MarkMethodStreamed(
      worker->FindMethodByName(name)->index(),
      new grpc::internal::BidiStreamingHandler<BlockStreamService, Request, grpc::ByteBuffer>(handler, this));
}

grpc::Status BlockStreamService::StreamGetBlocks(grpc::ServerContext&, const v1::GetBlocksRequest&,
                                                 const PieceWriter&) {
  return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "GetBlocks");
}

grpc::Status BlockStreamService::StreamFetchBlocks(grpc::ServerContext&, const v1::FetchBlocksRequest&,
                                                   const PieceWriter&) {
  return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "FetchBlocks");
}

}  // namespace kvmesh
