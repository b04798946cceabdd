#include "worker/transport/grpc/fetch_server.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/unit/worker/transport/grpc/fetch_world.h"

namespace kvmesh {
namespace {

class FetchServerTest : public testing::Test {
 protected:
  explicit FetchServerTest(TestWorkerOptions options = {}) : clock_(absl::Now()) {
    options.clock = &clock_;
    options_ = options;
    worker_.emplace(options_);
  }

  // Serves the ticket and keeps the pieces.
  absl::Status Serve(const Ticket& ticket) {
    return Serve(TestRequest(SealTicket(ticket, kTestTicketKey), worker_->store->layout_fingerprint()));
  }
  absl::Status Serve(const v1::FetchBlocksRequest& request) {
    pieces_.clear();
    return worker_->fetch.Serve(request, [this](const grpc::ByteBuffer& piece) {
      pieces_.push_back(Decoded(piece));
      return true;
    });
  }
  Ticket NewTicket(uint32_t first = 0) { return TestTicket(root_, keys_, first, clock_.Now()); }

  // The kept pieces are the blocks from keys_[first] on.
  void ExpectBlocks(uint32_t first = 0) {
    const size_t count = keys_.size() - first;
    Targets targets(count, worker_->block_bytes());
    BlockAssembler assembler(worker_->store->layout_fingerprint(), targets.spans());
    for (const v1::BlockPiece& piece : pieces_) {
      grpc::ByteBuffer encoded = Encoded(piece);
      const auto header = assembler.Take(encoded);
      ASSERT_TRUE(header.ok()) << header.status();
      if (!*header) continue;
      const size_t i = assembler.completed() - 1;
      EXPECT_EQ((*header)->key, keys_[first + i]);
      EXPECT_EQ((*header)->start_position, (first + i) * kTestBlockTokens);
      EXPECT_TRUE(VerifyBlock(**header, targets.block(i)).ok());
      EXPECT_TRUE(HoldsBlock(keys_[first + i], targets.block(i)));
    }
    EXPECT_TRUE(assembler.complete());
  }
  void ExpectNothingHeld() {
    EXPECT_EQ(worker_->store->GetBooks().pinned_blocks, 0u);
    EXPECT_EQ(worker_->store->GetBooks().read_pins, 0u);
    EXPECT_EQ(worker_->server.counters().serves_in_flight, 0u);
  }

  ManualClock clock_;
  TestWorkerOptions options_;
  std::optional<GrpcTestWorker> worker_;
  const RootKey root_ = TestRoot(1);
  const std::vector<BlockKey> keys_ = TestChain(root_, 0, 6);
  std::vector<v1::BlockPiece> pieces_;
};

TEST_F(FetchServerTest, ServesWholeChainAndItsTail) {
  worker_->Seal(root_, keys_);
  ASSERT_TRUE(Serve(NewTicket()).ok());
  ExpectBlocks();
  ASSERT_TRUE(Serve(NewTicket(4)).ok());
  ExpectBlocks(4);
  EXPECT_EQ(worker_->server.counters().served_blocks, 8u);
  EXPECT_EQ(worker_->server.counters().served_bytes, 8 * worker_->block_bytes());
  ExpectNothingHeld();
}

TEST_F(FetchServerTest, LargeBlocksGoInPiecesOfOneMebibyte) {
  worker_.reset();
  options_.layout = TestLayout(60'000);  // 2 x 2 x 2 x 4 x 60,000 x 4 bytes = 7.68 MB
  options_.device_slots = 6;
  worker_.emplace(options_);
  worker_->Seal(root_, keys_);
  ASSERT_TRUE(Serve(NewTicket(5)).ok());
  EXPECT_EQ(pieces_.size(), 8u);
  for (const v1::BlockPiece& piece : pieces_) EXPECT_LE(piece.payload().size(), kMaxPieceBytes);
  ExpectBlocks(5);
}

TEST_F(FetchServerTest, SendsNoMoreBlocksThanAskedFor) {
  worker_->Seal(root_, keys_);
  v1::FetchBlocksRequest request =
      TestRequest(SealTicket(NewTicket(), kTestTicketKey), worker_->store->layout_fingerprint());
  request.set_max_blocks(2);
  ASSERT_TRUE(Serve(request).ok());
  EXPECT_EQ(worker_->server.counters().served_blocks, 2u);
  request = TestRequest(SealTicket(NewTicket(4), kTestTicketKey), worker_->store->layout_fingerprint());
  request.set_max_blocks(1000);
  ASSERT_TRUE(Serve(request).ok());
  ExpectBlocks(4);
}

TEST_F(FetchServerTest, ReceiverThatGoesAwayEndsTheServe) {
  worker_->Seal(root_, keys_);
  const auto request = TestRequest(SealTicket(NewTicket(), kTestTicketKey), worker_->store->layout_fingerprint());
  int written = 0;
  const absl::Status status =
      worker_->fetch.Serve(request, [&written](const grpc::ByteBuffer&) { return ++written < 3; });
  EXPECT_TRUE(absl::IsCancelled(status));
  EXPECT_EQ(written, 3);
  EXPECT_EQ(worker_->server.counters().served_blocks, 2u);
  ExpectNothingHeld();
}

TEST_F(FetchServerTest, CorruptBlockIsNotSentAndIsErased) {
  worker_->Seal(root_, keys_);
  {
    const auto acquired = worker_->store->Acquire(keys_, {}, absl::InfiniteFuture());
    worker_->device->bytes(acquired.pins[3].block())[5] ^= std::byte{1};
  }
  EXPECT_TRUE(absl::IsDataLoss(Serve(NewTicket())));
  EXPECT_EQ(pieces_.size(), 3u);
  EXPECT_EQ(worker_->store->Lookup(keys_, {}).blocks[0], 3u);
  ExpectNothingHeld();
}

TEST_F(FetchServerTest, ARefusalWritesNothing) {
  worker_->Seal(root_, keys_);
  const Ticket ticket = NewTicket();
  ASSERT_TRUE(Serve(ticket).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(Serve(ticket)));
  EXPECT_TRUE(pieces_.empty());
}

}  // namespace
}  // namespace kvmesh
