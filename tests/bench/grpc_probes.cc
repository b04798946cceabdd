#include "tests/bench/grpc_probes.h"

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <latch>
#include <span>

#include "absl/strings/str_cat.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/service/grpc_status.h"
#include "tests/bench/bench_cluster.h"
#include "tests/bench/bench_support.h"

namespace kvmesh {
namespace {

constexpr size_t kPooledMessages = 64;
constexpr char kFetchMethod[] = "/kvmesh.v1.Worker/FetchBlocks";

// Writes one buffer `count` times.
class RawWriter final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  RawWriter(const grpc::ByteBuffer& piece, uint32_t count) : piece_(piece), left_(count) { Next(); }

 private:
  void Next() {
    if (left_ == 0) return Finish(grpc::Status::OK);
    --left_;
    StartWrite(&piece_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) left_ = 0;
    Next();
  }
  void OnDone() override { delete this; }

  const grpc::ByteBuffer piece_;
  uint32_t left_;
};

// Counts the bytes of one stream.
class RawReader final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  RawReader(const std::shared_ptr<grpc::Channel>& channel, const grpc::ByteBuffer& request)
      : stub_(channel), request_(request) {
    context_.set_initial_metadata_corked(true);
    stub_.PrepareBidiStreamingCall(&context_, kFetchMethod, {}, this);
    StartWriteLast(&request_, grpc::WriteOptions());
    StartRead(&piece_);
    StartCall();
  }
  absl::StatusOr<uint64_t> Wait() {
    done_.wait();
    if (!status_.ok()) return FromGrpcStatus(status_);
    return bytes_;
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    bytes_ += piece_.Length();
    piece_.Clear();
    StartRead(&piece_);
  }
  void OnDone(const grpc::Status& status) override {
    status_ = status;
    done_.count_down();
  }

  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
  grpc::ClientContext context_;
  const grpc::ByteBuffer request_;
  grpc::ByteBuffer piece_;
  uint64_t bytes_ = 0;
  grpc::Status status_;
  std::latch done_{1};
};

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

grpc::Status MessageStreamService::FetchBlocks(grpc::ServerContext*, const v1::FetchBlocksRequest* request,
                                               grpc::ServerWriter<v1::BlockPiece>* writer) {
  for (uint32_t i = 0; i < request->max_blocks(); ++i) {
    if (!writer->Write(piece_)) break;
  }
  return grpc::Status::OK;
}

uint64_t DrainMessageStream(const std::shared_ptr<grpc::Channel>& channel, uint32_t pieces) {
  grpc::ClientContext context;
  v1::FetchBlocksRequest request;
  request.set_max_blocks(pieces);
  const auto reader = v1::Worker::NewStub(channel)->FetchBlocks(&context, request);
  uint64_t bytes = 0;
  v1::BlockPiece piece;
  while (reader->Read(&piece)) bytes += piece.payload().size();
  Must(FromGrpcStatus(reader->Finish()));
  return bytes;
}

RawStreamService::RawStreamService(size_t piece_bytes) {
  const grpc::Slice slice(std::string(piece_bytes, 'x'));
  piece_ = grpc::ByteBuffer(&slice, 1);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* RawStreamService::FetchBlocks(grpc::CallbackServerContext*,
                                                                          const grpc::ByteBuffer* request) {
  grpc::ByteBuffer message = *request;
  grpc::ProtoBufferReader reader(&message);
  v1::FetchBlocksRequest parsed;
  return new RawWriter(piece_, parsed.ParseFromZeroCopyStream(&reader) ? parsed.max_blocks() : 0);
}

uint64_t DrainRawStream(const std::shared_ptr<grpc::Channel>& channel, uint32_t pieces) {
  v1::FetchBlocksRequest request;
  request.set_max_blocks(pieces);
  const grpc::Slice slice(request.SerializeAsString());
  RawReader reader(channel, grpc::ByteBuffer(&slice, 1));
  return Must(reader.Wait());
}

}  // namespace kvmesh
