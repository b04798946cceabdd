#include "worker/transport/grpc/fetch_server.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "kvstore/base/check.h"

namespace kvmesh {
namespace {

const FetchServer::Options& Checked(const FetchServer::Options& options) {
  KVMESH_CHECK(options.blocks != nullptr, "a fetch server without a block server");
  KVMESH_CHECK(options.piece_bytes >= 1 && options.piece_bytes <= kMaxPieceBytes, "piece_bytes out of range");
  return options;
}

}  // namespace

FetchServer::FetchServer(const Options& options)
    : blocks_(*Checked(options).blocks), buffers_(std::min(options.piece_bytes, blocks_.block_bytes())) {}

absl::Status FetchServer::Serve(const grpc::ServerContext& context, const v1::FetchBlocksRequest& request,
                                const PieceWriter& write) {
  if (context.deadline() == std::chrono::system_clock::time_point::max()) {
    return blocks_.Refuse(FetchRefusal::kMalformed, absl::InvalidArgumentError("deadline: the call has none"));
  }
  return Serve(request, write);
}

absl::Status FetchServer::Serve(const v1::FetchBlocksRequest& request, const PieceWriter& write) {
  const absl::StatusOr<std::unique_ptr<BlockServe>> admitted = blocks_.Admit(request);
  if (!admitted.ok()) return admitted.status();
  BlockServe& serve = **admitted;
  ServedBlock block;
  while (!serve.done()) {
    KVMESH_RETURN_IF_ERROR(serve.Next(block));
    if (!WriteBlock(block.header, block.bytes, buffers_, write)) {
      return absl::CancelledError("the receiver is gone");
    }
    serve.CountSent(block);
  }
  return absl::OkStatus();
}

}  // namespace kvmesh
