// The sending end of FetchBlocks over gRPC: writes the blocks of an admitted request in pieces.
#ifndef KVMESH_WORKER_TRANSPORT_GRPC_FETCH_SERVER_H_
#define KVMESH_WORKER_TRANSPORT_GRPC_FETCH_SERVER_H_

#include <grpcpp/server_context.h>

#include <cstddef>

#include "kvmesh/v1/worker.pb.h"
#include "kvstore/base/status.h"
#include "worker/transport/grpc/block_pieces.h"
#include "worker/transport/serve/block_server.h"

namespace kvmesh {

// Thread safe; each Serve blocks its caller until the last piece is written.
class FetchServer {
 public:
  struct Options {
    BlockServer* blocks = nullptr;        // required
    size_t piece_bytes = kMaxPieceBytes;  // 1 to kMaxPieceBytes
  };
  explicit FetchServer(const Options& options);

  // Writes the request's blocks in chain order, each pinned only while it is written. The errors of BlockServer::Admit
  // and BlockServe::Next; CANCELLED: `write` returned false. A pin is held while `write` blocks: it must end with the
  // call's deadline.
  absl::Status Serve(const v1::FetchBlocksRequest& request, const PieceWriter& write);
  // The same for a handler of the synchronous gRPC server. INVALID_ARGUMENT also for a call without a deadline.
  absl::Status Serve(const grpc::ServerContext& context, const v1::FetchBlocksRequest& request,
                     const PieceWriter& write);

 private:
  BlockServer& blocks_;
  PieceBuffers buffers_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_TRANSPORT_GRPC_FETCH_SERVER_H_
