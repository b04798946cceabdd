// Bare gRPC beside the product: the same server helper, channel settings and message types, and handlers that do next
// to nothing.
#ifndef KVMESH_TESTS_BENCH_GRPC_PROBES_H_
#define KVMESH_TESTS_BENCH_GRPC_PROBES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/server/message_pool.h"
#include "kvmesh/v1/coordinator.grpc.pb.h"
#include "kvmesh/v1/worker.grpc.pb.h"
#include "kvstore/block/block_key.h"
#include "kvstore/service/grpc_server.h"

namespace kvmesh {

// Serves `services` on a free port of loopback.
class ProbeServer {
 public:
  explicit ProbeServer(std::vector<grpc::Service*> services);
  const std::string& address() const { return address_; }

 private:
  std::unique_ptr<GrpcServer> server_;
  std::string address_;
};

// An unary echo in the callback API: takes a RouteRequest and answers with a fixed number of bytes. Not thread safe
// against its setters.
class EchoService final : public v1::Coordinator::WithCallbackMethod_Route<v1::Coordinator::Service> {
 public:
  // `pooled`: messages are kept for the next call, as the coordinator does.
  explicit EchoService(bool pooled);

  // Answers have the wire size of `answer`.
  void AnswerLike(const v1::RouteResponse& answer);
  // Computes the key chain over the request's tokens too.
  void ChainFrom(const RootKey& root) { root_ = root; }

  grpc::ServerUnaryReactor* Route(grpc::CallbackServerContext* context, const v1::RouteRequest* request,
                                  v1::RouteResponse* response) override;

 private:
  MessagePool<v1::RouteRequest, v1::RouteResponse> messages_;
  RootKey root_;
  std::string payload_;
};

// Two bare byte streams, as FetchBlocks of a worker that has nothing to say: `max_blocks` pieces of `piece_bytes`
// payload bytes each, the same ones again and again.

// BlockPiece messages, in the synchronous API on both ends.
class MessageStreamService final : public v1::Worker::Service {
 public:
  explicit MessageStreamService(size_t piece_bytes) { piece_.set_payload(std::string(piece_bytes, 'x')); }
  grpc::Status FetchBlocks(grpc::ServerContext* context, const v1::FetchBlocksRequest* request,
                           grpc::ServerWriter<v1::BlockPiece>* writer) override;

 private:
  v1::BlockPiece piece_;
};
// Reads a stream of `pieces` to its end; returns the payload bytes that came.
uint64_t DrainMessageStream(const std::shared_ptr<grpc::Channel>& channel, uint32_t pieces);

// Raw buffers in the callback API: nothing is copied or encoded outside of gRPC itself.
class RawStreamService final : public v1::Worker::WithRawCallbackMethod_FetchBlocks<v1::Worker::Service> {
 public:
  explicit RawStreamService(size_t piece_bytes);
  grpc::ServerWriteReactor<grpc::ByteBuffer>* FetchBlocks(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request) override;

 private:
  grpc::ByteBuffer piece_;
};
uint64_t DrainRawStream(const std::shared_ptr<grpc::Channel>& channel, uint32_t pieces);

}  // namespace kvmesh

#endif  // KVMESH_TESTS_BENCH_GRPC_PROBES_H_
