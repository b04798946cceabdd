// A sender with a chain of blocks, and the transport of a receiver.
#ifndef KVMESH_TESTS_UNIT_WORKER_TRANSPORT_GRPC_TRANSPORT_WORLD_H_
#define KVMESH_TESTS_UNIT_WORKER_TRANSPORT_GRPC_TRANSPORT_WORLD_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/await.h"
#include "tests/support/gate.h"
#include "tests/unit/worker/transport/grpc/fetch_world.h"
#include "worker/transport/grpc/grpc_transport.h"

namespace kvmesh {

inline constexpr std::byte kCanary{0xcc};

class GrpcTransportTest : public testing::Test {
 protected:
  static constexpr size_t kBlocks = 12;

  GrpcTransportTest() : sender_({}, 300), targets_(kBlocks, sender_.block_bytes()) { sender_.Seal(root_, keys_); }

  GrpcTransport& MakeTransport(GrpcTransport::Options options = {}) {
    options.make_channel = TestChannel;
    options.receiver_id = "receiver";
    options.receiver_incarnation = TestIncarnation(2);
    transport_ = std::make_unique<GrpcTransport>(std::move(options));
    return *transport_;
  }
  TransferRequest Request(const std::string& address, absl::Duration deadline = kTestPatience) {
    return {.peer_id = "sender",
            .peer_address = address,
            .ticket = SealTicket(TestTicket(root_, keys_), kTestTicketKey),
            .layout = sender_.store->layout_fingerprint(),
            .targets = targets_.spans(),
            .deadline = absl::Now() + deadline};
  }
  // Posts the request, waits for quiescence, and returns all that arrived with the result.
  TransferProgress Transfer(const TransferRequest& request) {
    absl::StatusOr<TransferId> id = transport_->Prepare(request);
    EXPECT_TRUE(id.ok()) << id.status();
    transport_->Post(*id);
    return Finish(*id);
  }
  TransferProgress Finish(TransferId id) {
    AwaitQuiescence(id);
    TransferProgress progress = transport_->Poll(id, 0);
    EXPECT_TRUE(progress.finished);
    transport_->Release(id);
    return progress;
  }
  void AwaitQuiescence(TransferId id) {
    const absl::Time give_up = absl::Now() + kTestPatience;
    while (!transport_->WaitForProgress(id, SIZE_MAX, absl::Seconds(1)).quiescent && absl::Now() < give_up) continue;
    ASSERT_TRUE(transport_->Poll(id, 0).quiescent);
  }
  void ExpectArrived(const TransferProgress& progress, size_t count) {
    ASSERT_EQ(progress.arrived.size(), count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(progress.arrived[i].key, keys_[i]);
      EXPECT_TRUE(VerifyBlock(progress.arrived[i], targets_.block(i)).ok());
      EXPECT_TRUE(HoldsBlock(keys_[i], targets_.block(i)));
    }
  }
  // All pieces of the chain, as the sender streams them.
  std::vector<v1::BlockPiece> Pieces() {
    std::vector<v1::BlockPiece> pieces;
    const auto request =
        TestRequest(SealTicket(TestTicket(root_, keys_), kTestTicketKey), sender_.store->layout_fingerprint());
    EXPECT_TRUE(sender_.fetch
                    .Serve(request,
                           [&pieces](const grpc::ByteBuffer& piece) {
                             pieces.push_back(Decoded(piece));
                             return true;
                           })
                    .ok());
    return pieces;
  }
  // A handler that streams exactly these and then returns `end`.
  static FetchService::Handler Replay(std::vector<v1::BlockPiece> pieces, absl::Status end = absl::OkStatus()) {
    return [pieces, end](grpc::ServerContext&, const v1::FetchBlocksRequest&, const PieceWriter& write) {
      for (const v1::BlockPiece& piece : pieces) {
        if (!write(Encoded(piece))) break;
      }
      return end;
    };
  }

  const RootKey root_ = TestRoot(1);
  const std::vector<BlockKey> keys_ = TestChain(root_, 0, kBlocks);
  GrpcTestWorker sender_;
  Targets targets_;
  std::unique_ptr<GrpcTransport> transport_;
};

// Ends the handler when the client has gone.
inline void AwaitCancelled(const grpc::ServerContext& context) {
  EXPECT_TRUE(Await(kTestPatience, [&context] { return context.IsCancelled(); }));
}

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_WORKER_TRANSPORT_GRPC_TRANSPORT_WORLD_H_
