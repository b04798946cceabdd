// The Worker gRPC service: each handler decodes, calls the core, encodes.
#ifndef KVMESH_WORKER_SERVER_WORKER_SERVICE_H_
#define KVMESH_WORKER_SERVER_WORKER_SERVICE_H_

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "kvmesh/v1/worker.grpc.pb.h"
#include "worker/server/stream_calls.h"
#include "worker/server/worker_core.h"
#include "worker/transport/grpc/block_stream_service.h"
#include "worker/transport/grpc/fetch_server.h"
#include "worker/transport/serve/block_server.h"

namespace kvmesh {

// What a call names: the full blocks of a prompt in one layer group.
struct NamedBlocks {
  CacheGroup group;
  bool first_group = false;  // of such an identity's sequences
  RootKey root;
  std::vector<BlockKey> keys;  // the chain's
  uint64_t tokens = 0;         // of the prompt
};

// Thread safe. Handlers block; the server gives each a thread.
class WorkerService final : public BlockStreamService {
 public:
  // None is owned.
  WorkerService(WorkerCore& core, const BlockServer& block_server, FetchServer& fetch_server)
      : core_(core),
        block_server_(block_server),
        fetch_server_(fetch_server),
        piece_buffers_(std::min(kMaxPieceBytes, static_cast<size_t>(core.store().device().layout().block_bytes))) {}

  StreamCalls& calls() { return calls_; }

  // Sequences (sequence_calls.cc).
  grpc::Status Session(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::SessionResponse, v1::SessionRequest>* stream) override;
  grpc::Status OpenSequence(grpc::ServerContext* context, const v1::OpenSequenceRequest* request,
                            v1::OpenSequenceResponse* response) override;
  grpc::Status AppendKv(grpc::ServerContext* context, const v1::AppendKvRequest* request,
                        v1::AppendKvResponse* response) override;
  grpc::Status Accept(grpc::ServerContext* context, const v1::AcceptRequest* request,
                      v1::AcceptResponse* response) override;
  grpc::Status Fork(grpc::ServerContext* context, const v1::ForkRequest* request, v1::ForkResponse* response) override;
  grpc::Status Truncate(grpc::ServerContext* context, const v1::TruncateRequest* request,
                        v1::TruncateResponse* response) override;
  grpc::Status CloseSequence(grpc::ServerContext* context, const v1::CloseSequenceRequest* request,
                             v1::CloseSequenceResponse* response) override;

  // Attention (attend_call.cc).
  grpc::Status Attend(grpc::ServerContext* context, const v1::AttendRequest* request,
                      v1::AttendResponse* response) override;

  // Generation (generate_call.cc).
  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override;
  grpc::Status Tokenize(grpc::ServerContext* context, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override;

  // Whole blocks (block_calls.cc).
  grpc::Status PutBlocks(grpc::ServerContext* context, grpc::ServerReader<v1::PutBlocksRequest>* reader,
                         v1::PutBlocksResponse* response) override;
  grpc::Status StreamGetBlocks(grpc::ServerContext& context, const v1::GetBlocksRequest& request,
                               const PieceWriter& write) override;
  grpc::Status StreamFetchBlocks(grpc::ServerContext& context, const v1::FetchBlocksRequest& request,
                                 const PieceWriter& write) override;

  // Books (state_calls.cc).
  grpc::Status Stats(grpc::ServerContext* context, const v1::WorkerStatsRequest* request,
                     v1::WorkerStatsResponse* response) override;
  grpc::Status DebugState(grpc::ServerContext* context, const v1::DebugStateRequest* request,
                          v1::DebugStateResponse* response) override;

 private:
  absl::Status Open(const grpc::ServerContext& context, const v1::OpenSequenceRequest& request,
                    v1::OpenSequenceResponse& response);
  absl::Status Append(const grpc::ServerContext& context, const v1::AppendKvRequest& request,
                      v1::AppendKvResponse& response);
  absl::Status AttendTo(const grpc::ServerContext& context, const v1::AttendRequest& request,
                        v1::AttendResponse& response);
  // The ids of a text of at most `max_tokens`. INVALID_ARGUMENT naming it: it has more bytes than these can stand for,
  // or than kMaxTextBytes. RESOURCE_EXHAUSTED: kMaxEncodings texts are being encoded.
  absl::StatusOr<std::vector<uint32_t>> Encode(const std::string& text, uint64_t max_tokens);
  absl::Status GenerateInto(grpc::ServerContext& context, const v1::GenerateRequest& request,
                            grpc::ServerWriter<v1::GenerateResponse>& writer);
  // PutBlocksRequest.Open or GetBlocksRequest. INVALID_ARGUMENT naming the field.
  template <class Request>
  absl::StatusOr<NamedBlocks> NameBlocks(const grpc::ServerContext& context, const Request& request) const;
  absl::Status Put(grpc::ServerContext& context, grpc::ServerReader<v1::PutBlocksRequest>& reader,
                   v1::PutBlocksResponse& response);
  absl::Status Get(grpc::ServerContext& context, const v1::GetBlocksRequest& request, const PieceWriter& write);

  // The caller: its certificate's tenant under TLS, else the one trusted user. UNAUTHENTICATED: no tenant in the
  // certificate.
  absl::StatusOr<std::string> CallerOf(const grpc::ServerContext& context) const;
  // The caller's sequence. NOT_FOUND: no such sequence of this caller.
  absl::StatusOr<SequenceTable::Borrowed> BorrowFor(const grpc::ServerContext& context, uint64_t sequence_id);
  // The identity's root, its tenant taken from the caller's certificate under TLS.
  absl::StatusOr<RootKey> RootFor(const grpc::ServerContext& context, const v1::CacheIdentity& proto) const;
  absl::Status CheckOpen() const;

  WorkerCore& core_;
  const BlockServer& block_server_;
  FetchServer& fetch_server_;
  PieceBuffers piece_buffers_;  // of GetBlocks
  std::atomic<int> encodings_{0};
  StreamCalls calls_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_SERVER_WORKER_SERVICE_H_
