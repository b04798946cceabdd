// Workers of one test that serve over gRPC: a fetch server and, where asked for, a gRPC server before it.
#ifndef KVMESH_TESTS_UNIT_WORKER_TRANSPORT_GRPC_FETCH_WORLD_H_
#define KVMESH_TESTS_UNIT_WORKER_TRANSPORT_GRPC_FETCH_WORLD_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvmesh/v1/worker.grpc.pb.h"
#include "kvstore/service/grpc_server.h"
#include "kvstore/service/grpc_status.h"
#include "tests/unit/worker/transport/serve/serve_world.h"
#include "worker/transport/grpc/block_stream_service.h"
#include "worker/transport/grpc/fetch_server.h"
#include "worker/transport/grpc/grpc_transport.h"

namespace kvmesh {

inline std::shared_ptr<grpc::Channel> TestChannel(const std::string& address) {
  return MakeChannel(address, grpc::InsecureChannelCredentials());
}

// A message on the wire, cut into slices of at most `slice_bytes`.
inline grpc::ByteBuffer InSlices(const std::string& message, size_t slice_bytes = 1 << 20) {
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < message.size(); i += slice_bytes) slices.emplace_back(message.substr(i, slice_bytes));
  return grpc::ByteBuffer(slices.data(), slices.size());
}
inline grpc::ByteBuffer Encoded(const v1::BlockPiece& piece) { return InSlices(piece.SerializeAsString()); }
inline v1::BlockPiece Decoded(const grpc::ByteBuffer& encoded) {
  grpc::ByteBuffer message = encoded;
  v1::BlockPiece piece;
  const grpc::Status status = grpc::SerializationTraits<v1::BlockPiece>::Deserialize(&message, &piece);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return piece;
}

// A Worker service whose FetchBlocks is the test's.
class FetchService : public BlockStreamService {
 public:
  using Handler = std::function<absl::Status(grpc::ServerContext& context, const v1::FetchBlocksRequest& request,
                                             const PieceWriter& write)>;
  explicit FetchService(Handler handler) : handler_(std::move(handler)) {}

  grpc::Status StreamFetchBlocks(grpc::ServerContext& context, const v1::FetchBlocksRequest& request,
                                 const PieceWriter& write) override {
    return ToGrpcStatus(handler_(context, request, write));
  }

 private:
  const Handler handler_;
};

// A FetchService that listens; ends with the object.
class FetchListener {
 public:
  explicit FetchListener(FetchService::Handler handler, int port = 0) : service_(std::move(handler)) {
    auto server = GrpcServer::Start({.address = absl::StrCat("127.0.0.1:", port),
                                     .credentials = grpc::InsecureServerCredentials(),
                                     .services = {&service_}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  int port() const { return server_->port(); }
  std::string address() const { return absl::StrCat("127.0.0.1:", port()); }
  // Cuts all connections at once.
  void Kill() { server_->Shutdown(absl::ZeroDuration()); }

 private:
  FetchService service_;
  std::unique_ptr<GrpcServer> server_;
};

// One worker's blocks and fetch server.
class GrpcTestWorker : public TestWorker {
 public:
  explicit GrpcTestWorker(const TestWorkerOptions& options = {}, size_t piece_bytes = kMaxPieceBytes)
      : TestWorker(options), fetch({.blocks = &server, .piece_bytes = piece_bytes}) {}

  FetchServer fetch;
};

// Forwards to a worker's fetch server, as its service does.
inline FetchService::Handler Forward(GrpcTestWorker& worker) {
  return [&worker](grpc::ServerContext& context, const v1::FetchBlocksRequest& request, const PieceWriter& write) {
    return worker.fetch.Serve(context, request, write);
  };
}

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_WORKER_TRANSPORT_GRPC_FETCH_WORLD_H_
