#include "tests/bench/grpc_probes.h"

#include <grpcpp/security/server_credentials.h>

#include <span>

#include "absl/strings/str_cat.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/service/grpc_status.h"
#include "tests/bench/bench_cluster.h"
#include "tests/bench/bench_support.h"

namespace kvmesh {
namespace {

constexpr size_t kPooledMessages = 64;

}  // namespace

ProbeServer::ProbeServer(std::vector<grpc::Service*> services)
    : server_(Must(GrpcServer::Start({.address = "127.0.0.1:0",
                                      .credentials = grpc::InsecureServerCredentials(),
                                      .services = std::move(services)}))),
      address_(absl::StrCat("127.0.0.1:", server_->port())) {}

EchoService::EchoService(bool pooled)
    : messages_(kPooledMessages, [](const v1::RouteRequest&, const v1::RouteResponse&) { return true; }) {
  if (pooled) SetMessageAllocatorFor_Route(&messages_);
}

void EchoService::AnswerLike(const v1::RouteResponse& answer) {
  const size_t bytes = answer.ByteSizeLong();
  v1::RouteResponse echo;
  payload_.assign(bytes, 'x');
  echo.set_placement_id(payload_);
  while (echo.ByteSizeLong() > bytes && !payload_.empty()) {
    payload_.pop_back();
    echo.set_placement_id(payload_);
  }
}

grpc::ServerUnaryReactor* EchoService::Route(grpc::CallbackServerContext* context, const v1::RouteRequest* request,
                                             v1::RouteResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  response->set_placement_id(payload_);
  if (request->has_tokens()) {
    const auto& ids = request->tokens().ids();
    const std::vector<BlockKey> keys =
        ComputeBlockKeys(RootAsParent(root_), std::span(ids.data(), static_cast<size_t>(ids.size())),
                         request->identity().block_tokens());
    if (keys.empty()) response->clear_placement_id();
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::Status ByteStreamService::FetchBlocks(grpc::ServerContext*, const v1::FetchBlocksRequest* request,
                                            grpc::ServerWriter<v1::BlockPiece>* writer) {
  for (uint32_t i = 0; i < request->max_blocks(); ++i) {
    if (!writer->Write(piece_)) break;
  }
  return grpc::Status::OK;
}

uint64_t DrainByteStream(v1::Worker::Stub& stub, uint32_t pieces) {
  grpc::ClientContext context;
  v1::FetchBlocksRequest request;
  request.set_max_blocks(pieces);
  const auto reader = stub.FetchBlocks(&context, request);
  uint64_t bytes = 0;
  v1::BlockPiece piece;
  while (reader->Read(&piece)) bytes += piece.payload().size();
  Must(FromGrpcStatus(reader->Finish()));
  return bytes;
}

}  // namespace kvmesh
