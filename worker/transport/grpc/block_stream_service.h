// A Worker service whose streams of blocks are written as encoded messages, so that a payload is copied once on its way
// into gRPC, not into a message first and from there into a buffer.
#ifndef KVMESH_WORKER_TRANSPORT_GRPC_BLOCK_STREAM_SERVICE_H_
#define KVMESH_WORKER_TRANSPORT_GRPC_BLOCK_STREAM_SERVICE_H_

#include <grpcpp/server_context.h>

#include "kvmesh/v1/worker.grpc.pb.h"
#include "worker/transport/grpc/block_pieces.h"

namespace kvmesh {

// Serves GetBlocks and FetchBlocks through the two methods below; all else as v1::Worker::Service does. Thread safe
// when they are; handlers block.
class BlockStreamService : public v1::Worker::Service {
 public:
  BlockStreamService();

  virtual grpc::Status StreamGetBlocks(grpc::ServerContext& context, const v1::GetBlocksRequest& request,
                                       const PieceWriter& write);
  virtual grpc::Status StreamFetchBlocks(grpc::ServerContext& context, const v1::FetchBlocksRequest& request,
                                         const PieceWriter& write);

 private:
  template <class Request>
  using Method = grpc::Status (BlockStreamService::*)(grpc::ServerContext&, const Request&, const PieceWriter&);
  template <class Request>
  void Serve(const char* name, Method<Request> method);
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_TRANSPORT_GRPC_BLOCK_STREAM_SERVICE_H_
