#include "worker/transport/grpc/fetch_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "tests/support/gate.h"
#include "tests/support/memory_disk_tier.h"
#include "tests/unit/worker/transport/grpc/fetch_world.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

class FetchServerTest : public testing::Test {
 protected:
  explicit FetchServerTest(TestWorkerOptions options = {}) : clock_(absl::Now()) {
    options.clock = &clock_;
    options_ = options;
    worker_.emplace(options_);
  }

  // Serves the sealed ticket and keeps the pieces.
  absl::Status Serve(const std::string& sealed) {
    return Serve(TestRequest(sealed, worker_->store->layout_fingerprint()));
  }
  absl::Status Serve(const Ticket& ticket) { return Serve(SealTicket(ticket, kTestTicketKey)); }
  absl::Status Serve(const v1::FetchBlocksRequest& request) {
    pieces_.clear();
    return worker_->server.Serve(request, [this](const grpc::ByteBuffer& piece) {
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
  uint64_t refused(FetchRefusal reason) { return worker_->server.counters().refused[static_cast<size_t>(reason)]; }
  void ExpectNothingHeld() {
    EXPECT_EQ(worker_->store->GetBooks().pinned_blocks, 0u);
    EXPECT_EQ(worker_->store->GetBooks().read_pins, 0u);
    EXPECT_EQ(worker_->server.counters().serves_in_flight, 0u);
  }

  ManualClock clock_;
  TestWorkerOptions options_;
  std::optional<TestWorker> worker_;
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

TEST_F(FetchServerTest, CopiesInAnotherFormatAreSentInTheDevicesLayoutWhereTheTicketAcceptsThem) {
  worker_.reset();
  MemoryDiskTier disk(64);
  options_.device_slots = 6;
  options_.host_slots = 2;
  options_.disk = &disk;
  options_.format_below = KvFormat::kInt8;
  worker_.emplace(options_);
  worker_->Seal(root_, keys_);
  worker_->Seal(root_, TestChain(root_, 1, 4));  // pushes all but two blocks down
  LossyFormats int8;
  int8.Add(KvFormat::kInt8);
  ASSERT_EQ(worker_->store->Lookup(keys_, {}).blocks, (std::array<uint32_t, 3>{2, 2, 0}));
  ASSERT_EQ(worker_->store->Lookup(keys_, int8).blocks, (std::array<uint32_t, 3>{2, 4, 6}));
  // The ticket accepts nothing lossy: what is exact is sent, and no more.
  EXPECT_EQ(Serve(NewTicket()).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(worker_->server.counters().served_blocks, 2u);
  Ticket ticket = NewTicket();
  ticket.accepted = int8;
  ASSERT_TRUE(Serve(ticket).ok());
  Targets targets(keys_.size(), worker_->block_bytes());
  BlockAssembler assembler(worker_->store->layout_fingerprint(), targets.spans());
  for (const v1::BlockPiece& piece : pieces_) {
    grpc::ByteBuffer encoded = Encoded(piece);
    const auto header = assembler.Take(encoded);
    ASSERT_TRUE(header.ok()) << header.status();
    if (!*header) continue;
    const size_t i = assembler.completed() - 1;
    EXPECT_EQ((*header)->key, keys_[i]);
    EXPECT_EQ((*header)->format, KvFormat::kF32);
    EXPECT_EQ((*header)->lossy_formats, i < 2 ? LossyFormats() : int8);
    EXPECT_TRUE(VerifyBlock(**header, targets.block(i)).ok());
    EXPECT_EQ(bool{HoldsBlock(keys_[i], targets.block(i))}, i < 2);
  }
  EXPECT_TRUE(assembler.complete());
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

TEST_F(FetchServerTest, EveryTierServes) {
  worker_.reset();
  MemoryDiskTier disk(64);
  options_.device_slots = 6;
  options_.host_slots = 2;
  options_.disk = &disk;
  worker_.emplace(options_);
  worker_->Seal(root_, keys_);
  worker_->Seal(root_, TestChain(root_, 1, 4));  // pushes all but two blocks down
  const BlockStore::Match match = worker_->store->Lookup(keys_, {});
  ASSERT_EQ(match.blocks, (std::array<uint32_t, 3>{2, 4, 6}));
  ASSERT_TRUE(Serve(NewTicket()).ok());
  ExpectBlocks();
  EXPECT_GT(disk.reads(), 0u);
  ExpectNothingHeld();
  worker_.reset();
}

TEST_F(FetchServerTest, RefusesForgedAndMalformedTickets) {
  worker_->Seal(root_, keys_);
  EXPECT_TRUE(absl::IsPermissionDenied(Serve(SealTicket(NewTicket(), DeriveTicketKey("another secret")))));
  std::string flipped = SealTicket(NewTicket(), kTestTicketKey);
  flipped[10] ^= 1;
  EXPECT_TRUE(absl::IsPermissionDenied(Serve(flipped)));
  EXPECT_EQ(refused(FetchRefusal::kForged), 2u);
  EXPECT_TRUE(absl::IsInvalidArgument(Serve(std::string())));
  EXPECT_TRUE(absl::IsInvalidArgument(Serve(std::string(200, 'x'))));
  EXPECT_EQ(refused(FetchRefusal::kMalformed), 2u);
  EXPECT_TRUE(pieces_.empty());
}

TEST_F(FetchServerTest, RefusesExpiredAndFarTickets) {
  worker_->Seal(root_, keys_);
  const Ticket ticket = NewTicket();
  clock_.AdvanceTo(ticket.expiry);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Serve(ticket)));
  Ticket far = NewTicket();
  far.expiry = clock_.Now() + kMaxTicketLife + absl::Seconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Serve(far)));
  EXPECT_EQ(refused(FetchRefusal::kExpired), 2u);
}

TEST_F(FetchServerTest, RefusesTicketsForOthers) {
  worker_->Seal(root_, keys_);
  Ticket other_sender = NewTicket();
  other_sender.sender = "another";
  EXPECT_TRUE(absl::IsPermissionDenied(Serve(other_sender)));
  Ticket earlier_start = NewTicket();
  earlier_start.sender_incarnation = TestIncarnation(9);
  EXPECT_TRUE(absl::IsPermissionDenied(Serve(earlier_start)));
  EXPECT_EQ(refused(FetchRefusal::kWrongSender), 2u);
  Ticket other_receiver = NewTicket();
  other_receiver.receiver = "another";
  EXPECT_TRUE(absl::IsPermissionDenied(Serve(other_receiver)));
  Ticket other_incarnation = NewTicket();
  other_incarnation.receiver_incarnation = TestIncarnation(9);
  EXPECT_TRUE(absl::IsPermissionDenied(Serve(other_incarnation)));
  EXPECT_EQ(refused(FetchRefusal::kWrongReceiver), 2u);
  EXPECT_TRUE(pieces_.empty());
}

TEST_F(FetchServerTest, RefusesRequestsWithBadFields) {
  worker_->Seal(root_, keys_);
  const Ticket ticket = NewTicket();
  const LayoutFingerprint layout = worker_->store->layout_fingerprint();
  v1::FetchBlocksRequest request = TestRequest(SealTicket(ticket, kTestTicketKey), layout);
  request.set_receiver_incarnation("short");
  absl::Status status = Serve(request);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("receiver_incarnation"));
  for (const std::string& fingerprint : {std::string(), std::string(8, '\0'), layout.ToString() + "x"}) {
    request = TestRequest(SealTicket(ticket, kTestTicketKey), layout);
    request.set_layout_fingerprint(fingerprint);
    status = Serve(request);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("layout_fingerprint"));
  }
  EXPECT_TRUE(Serve(ticket).ok()) << "a refused request must not use the ticket up";
}

TEST_F(FetchServerTest, ServesATicketOnce) {
  worker_->Seal(root_, keys_);
  const Ticket ticket = NewTicket();
  ASSERT_TRUE(Serve(ticket).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(Serve(ticket)));
  EXPECT_TRUE(pieces_.empty());
  EXPECT_EQ(refused(FetchRefusal::kServedBefore), 1u);
}

TEST_F(FetchServerTest, RefusesChainsThatAreNotHeld) {
  worker_->Seal(root_, {keys_.begin(), keys_.begin() + 3});
  EXPECT_TRUE(absl::IsNotFound(Serve(NewTicket())));
  Ticket wrong_index = TestTicket(root_, {keys_.begin(), keys_.begin() + 3}, 0, clock_.Now());
  wrong_index.first_block = 1;
  EXPECT_TRUE(absl::IsNotFound(Serve(wrong_index)));
  Ticket other_root = TestTicket(TestRoot(2), {keys_.begin(), keys_.begin() + 3}, 0, clock_.Now());
  EXPECT_TRUE(absl::IsNotFound(Serve(other_root)));
  EXPECT_EQ(refused(FetchRefusal::kNotHeld), 3u);
  ExpectNothingHeld();
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

TEST_F(FetchServerTest, ChainThatVanishesWhileItIsServedEndsTheServe) {
  worker_->Seal(root_, keys_);
  const auto request = TestRequest(SealTicket(NewTicket(), kTestTicketKey), worker_->store->layout_fingerprint());
  int written = 0;
  const absl::Status status = worker_->server.Serve(request, [&](const grpc::ByteBuffer&) {
    if (++written == 2) worker_->store->EraseIdentity(root_);
    return true;
  });
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(written, 2);
  EXPECT_EQ(worker_->server.counters().served_blocks, 2u);
  EXPECT_EQ(refused(FetchRefusal::kNotHeld), 0u) << "it was not refused";
  ExpectNothingHeld();
}

TEST_F(FetchServerTest, LossyBlocksNeedAcceptance) {
  LossyFormats lossy;
  lossy.Add(KvFormat::kBf16);
  worker_->Seal(root_, keys_, lossy);
  EXPECT_TRUE(absl::IsNotFound(Serve(NewTicket())));
  Ticket accepting = NewTicket();
  accepting.accepted = lossy;
  EXPECT_TRUE(Serve(accepting).ok());
}

TEST_F(FetchServerTest, RemembersUsedTicketsUpToALimitUntilTheyExpire) {
  worker_.reset();
  options_.max_used_tickets = 2;
  worker_.emplace(options_);
  worker_->Seal(root_, keys_);
  const Ticket first = NewTicket(5);
  ASSERT_TRUE(Serve(first).ok());
  ASSERT_TRUE(Serve(NewTicket(5)).ok());
  const Ticket third = NewTicket(5);
  const absl::Status full = Serve(third);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("used tickets"));
  EXPECT_EQ(refused(FetchRefusal::kTicketMemory), 1u);
  EXPECT_TRUE(absl::IsPermissionDenied(Serve(first)));
  clock_.AdvanceTo(first.expiry);
  EXPECT_TRUE(Serve(NewTicket(5)).ok());
}

TEST_F(FetchServerTest, BoundsConcurrentServesAndPinsOneBlockAtATime) {
  worker_.reset();
  options_.max_serves = 1;
  worker_.emplace(options_);
  worker_->Seal(root_, keys_);
  Gate gate;
  gate.Close();
  absl::Status held;
  std::thread serving([&] {
    const auto request = TestRequest(SealTicket(NewTicket(), kTestTicketKey), worker_->store->layout_fingerprint());
    int written = 0;
    held = worker_->server.Serve(request, [&](const grpc::ByteBuffer&) {
      if (written++ == 2) gate.Pass();
      return true;
    });
  });
  ASSERT_TRUE(gate.AwaitWaiting(1));
  EXPECT_EQ(worker_->server.counters().serves_in_flight, 1u);
  EXPECT_EQ(worker_->server.counters().served_blocks, 2u);
  EXPECT_EQ(worker_->store->GetBooks().pinned_blocks, 1u);
  const Ticket second = NewTicket();
  const absl::Status busy = Serve(second);
  EXPECT_TRUE(absl::IsResourceExhausted(busy));
  EXPECT_THAT(std::string(busy.message()), HasSubstr("fetches served"));
  EXPECT_EQ(refused(FetchRefusal::kBusy), 1u);
  gate.Open();
  serving.join();
  EXPECT_TRUE(held.ok()) << held;
  EXPECT_TRUE(Serve(second).ok());
  ExpectNothingHeld();
}

TEST_F(FetchServerTest, ReceiverThatGoesAwayEndsTheServe) {
  worker_->Seal(root_, keys_);
  const auto request = TestRequest(SealTicket(NewTicket(), kTestTicketKey), worker_->store->layout_fingerprint());
  int written = 0;
  const absl::Status status =
      worker_->server.Serve(request, [&written](const grpc::ByteBuffer&) { return ++written < 3; });
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

TEST_F(FetchServerTest, DiskThatFailsIsUnavailable) {
  worker_.reset();
  MemoryDiskTier disk(64);
  options_.device_slots = 6;
  options_.disk = &disk;
  worker_.emplace(options_);
  worker_->Seal(root_, keys_);
  worker_->Seal(root_, TestChain(root_, 1, 6));
  disk.SetReadFault([](const BlockHeader&) { return absl::UnavailableError("disk: gone"); });
  EXPECT_TRUE(absl::IsUnavailable(Serve(NewTicket())));
  ExpectNothingHeld();
  worker_.reset();
}

}  // namespace
}  // namespace kvmesh
