// One transfer: a FetchBlocks call on a peer, from prepared to quiescent.
//
//   prepared -> running -> finished (result set) -> quiescent (OnDone ran)
//
// A prepared call that fails is quiescent at once. After `finished` no new piece is written, but one that is being
// written may still land until `quiescent`.
#ifndef KVMESH_WORKER_TRANSPORT_GRPC_FETCH_CALL_H_
#define KVMESH_WORKER_TRANSPORT_GRPC_FETCH_CALL_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "kvmesh/v1/worker.pb.h"
#include "kvstore/base/mutex.h"
#include "worker/transport/grpc/block_pieces.h"
#include "worker/transport/grpc/channel_cache.h"
#include "worker/transport/transport.h"

namespace kvmesh {

// How long a peer may be silent before its transfers end with UNAVAILABLE.
struct FetchTimeouts {
  absl::Duration connect = absl::Seconds(2);  // until the connection stands
  absl::Duration stall = absl::Seconds(5);    // between pieces, and before the first
};

// The result that a call's status stands for, in the codes of TransferProgress. `complete`: all blocks arrived.
absl::Status FetchResult(const grpc::Status& status, bool complete);

// Thread safe. Destroyed only once quiescent or never started, and never on one of gRPC's callback threads: the last
// channel of a process joins them.
class FetchCall final : public grpc::ClientBidiReactor<v1::FetchBlocksRequest, grpc::ByteBuffer> {
 public:
  using Clock = std::chrono::steady_clock;

  // `channels` outlives the time until quiescence.
  FetchCall(const TransferRequest& request, v1::FetchBlocksRequest message, ChannelCache& channels);

  // Starts the call unless it failed already. At most once.
  void Start();
  // Ends it with `result` unless it has one, and cancels what runs.
  void Fail(absl::Status result);

  TransferProgress Progress(size_t seen);
  TransferProgress WaitForProgress(size_t seen, absl::Duration timeout);

  // Fails the call when the peer was silent for too long. Returns the time to check again, or Clock::time_point::max()
  // when there is nothing to watch.
  Clock::time_point CheckSilence(Clock::time_point now, const FetchTimeouts& timeouts);

 private:
  enum class Stage { kPrepared, kRunning, kQuiescent };

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  TransferProgress ProgressLocked(size_t seen) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string address_;
  const v1::FetchBlocksRequest message_;
  ChannelCache& channels_;
  grpc::ClientContext context_;
  std::shared_ptr<PeerChannel> peer_;  // set by Start before it runs
  std::atomic<Clock::rep> last_heard_{0};
  std::atomic<bool> any_piece_{false};

  // Touched by one reaction at a time.
  BlockAssembler assembler_;
  grpc::ByteBuffer piece_;  // encoded, so that its payload is copied once

  Mutex mu_;
  CondVar changed_;
  Stage stage_ ABSL_GUARDED_BY(mu_) = Stage::kPrepared;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status result_ ABSL_GUARDED_BY(mu_);
  std::vector<BlockHeader> arrived_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_TRANSPORT_GRPC_FETCH_CALL_H_
