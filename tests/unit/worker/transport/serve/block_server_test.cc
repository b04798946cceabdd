#include "worker/transport/serve/block_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <tuple>

#include "tests/support/memory_disk_tier.h"
#include "tests/unit/worker/transport/serve/serve_world.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

class BlockServerTest : public testing::Test {
 protected:
  BlockServerTest() : clock_(absl::Now()) {
    options_.clock = &clock_;
    worker_.emplace(options_);
  }

  // Serves the sealed ticket and keeps the blocks.
  absl::Status Serve(const std::string& sealed) {
    return Serve(TestRequest(sealed, worker_->store->layout_fingerprint()));
  }
  absl::Status Serve(const Ticket& ticket) { return Serve(SealTicket(ticket, kTestTicketKey)); }
  // `sent` is called after each block.
  absl::Status Serve(
      const v1::FetchBlocksRequest& request, const std::function<void()>& sent = [] {}) {
    headers_.clear();
    bytes_.clear();
    const absl::StatusOr<std::unique_ptr<BlockServe>> serve = worker_->server.Admit(request);
    if (!serve.ok()) return serve.status();
    ServedBlock block;
    while (!(*serve)->done()) {
      KVMESH_RETURN_IF_ERROR((*serve)->Next(block));
      headers_.push_back(block.header);
      bytes_.emplace_back(block.bytes.begin(), block.bytes.end());
      (*serve)->CountSent(block);
      sent();
    }
    return absl::OkStatus();
  }
  Ticket NewTicket(uint32_t first = 0) { return TestTicket(root_, keys_, first, clock_.Now()); }

  // The kept blocks are those from keys_[first] on.
  void ExpectBlocks(uint32_t first = 0) {
    ASSERT_EQ(headers_.size(), keys_.size() - first);
    for (size_t i = 0; i < headers_.size(); ++i) {
      EXPECT_EQ(headers_[i].key, keys_[first + i]);
      EXPECT_EQ(headers_[i].start_position, (first + i) * kTestBlockTokens);
      EXPECT_TRUE(VerifyBlock(headers_[i], bytes_[i]).ok());
      EXPECT_TRUE(HoldsBlock(keys_[first + i], bytes_[i]));
    }
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
  std::vector<BlockHeader> headers_;
  std::vector<std::vector<std::byte>> bytes_;
};

TEST_F(BlockServerTest, ServesTheLastBlocksOfAnotherGroupOnceForEachTicket) {
  worker_->Seal(root_, keys_);
  worker_->Seal(root_, keys_, {}, 1);
  const std::string sealed = SealTicket(NewTicket(4), kTestTicketKey);
  v1::FetchBlocksRequest request = TestRequest(sealed, worker_->store->layout_fingerprint());
  request.set_group(1);
  request.set_max_blocks(3);
  ASSERT_TRUE(Serve(request).ok());
  ASSERT_EQ(headers_.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(headers_[i].group, 1u);
    EXPECT_EQ(headers_[i].key, keys_[3 + i]);
    EXPECT_TRUE(VerifyBlock(headers_[i], bytes_[i]).ok());
    EXPECT_TRUE(HoldsBlock(ComputeGroupKey(keys_[3 + i], 1), bytes_[i]));
  }
  EXPECT_TRUE(absl::IsPermissionDenied(Serve(request)));
  EXPECT_EQ(refused(FetchRefusal::kServedBefore), 1u);
  ASSERT_TRUE(Serve(sealed).ok()) << "the chain's part of the ticket is still good";
  ExpectBlocks(4);
  ExpectNothingHeld();
}

TEST_F(BlockServerTest, RefusesGroupsAndCountsThatItDoesNotHave) {
  worker_->Seal(root_, keys_);
  v1::FetchBlocksRequest request =
      TestRequest(SealTicket(NewTicket(), kTestTicketKey), worker_->store->layout_fingerprint());
  for (const auto& [group, blocks, field] : {std::tuple(2u, 1u, "group: 2"),
                                             {1u, 0u, "max_blocks: 0"},
                                             {1u, 7u, "max_blocks: 7"},
                                             {0xffffffffu, 1u, "group: 4294967295"}}) {
    request.set_group(group);
    request.set_max_blocks(blocks);
    const absl::Status status = Serve(request);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(field));
  }
  EXPECT_EQ(refused(FetchRefusal::kMalformed), 4u);
  request.set_group(1);
  request.set_max_blocks(2);
  EXPECT_TRUE(absl::IsNotFound(Serve(request)));
  EXPECT_EQ(refused(FetchRefusal::kNotHeld), 1u);
}

TEST_F(BlockServerTest, ServesWholeChainAndItsTail) {
  worker_->Seal(root_, keys_);
  ASSERT_TRUE(Serve(NewTicket()).ok());
  ExpectBlocks();
  ASSERT_TRUE(Serve(NewTicket(4)).ok());
  ExpectBlocks(4);
  EXPECT_EQ(worker_->server.counters().served_blocks, 8u);
  EXPECT_EQ(worker_->server.counters().served_bytes, 8 * worker_->block_bytes());
  ExpectNothingHeld();
}

TEST_F(BlockServerTest, CopiesInAnotherFormatAreSentInTheDevicesLayoutWhereTheTicketAcceptsThem) {
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
  ASSERT_EQ(headers_.size(), keys_.size());
  for (size_t i = 0; i < headers_.size(); ++i) {
    EXPECT_EQ(headers_[i].key, keys_[i]);
    EXPECT_EQ(headers_[i].format, KvFormat::kF32);
    EXPECT_EQ(headers_[i].lossy_formats, i < 2 ? LossyFormats() : int8);
    EXPECT_TRUE(VerifyBlock(headers_[i], bytes_[i]).ok());
    EXPECT_EQ(bool{HoldsBlock(keys_[i], bytes_[i])}, i < 2);
  }
  ExpectNothingHeld();
}

TEST_F(BlockServerTest, EveryTierServes) {
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

TEST_F(BlockServerTest, RefusesForgedAndMalformedTickets) {
  worker_->Seal(root_, keys_);
  EXPECT_TRUE(absl::IsPermissionDenied(Serve(SealTicket(NewTicket(), DeriveTicketKey("another secret")))));
  std::string flipped = SealTicket(NewTicket(), kTestTicketKey);
  flipped[10] ^= 1;
  EXPECT_TRUE(absl::IsPermissionDenied(Serve(flipped)));
  EXPECT_EQ(refused(FetchRefusal::kForged), 2u);
  EXPECT_TRUE(absl::IsInvalidArgument(Serve(std::string())));
  EXPECT_TRUE(absl::IsInvalidArgument(Serve(std::string(200, 'x'))));
  EXPECT_EQ(refused(FetchRefusal::kMalformed), 2u);
  EXPECT_TRUE(headers_.empty());
}

TEST_F(BlockServerTest, RefusesExpiredAndFarTickets) {
  worker_->Seal(root_, keys_);
  const Ticket ticket = NewTicket();
  clock_.AdvanceTo(ticket.expiry);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Serve(ticket)));
  Ticket far = NewTicket();
  far.expiry = clock_.Now() + kMaxTicketLife + absl::Seconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Serve(far)));
  EXPECT_EQ(refused(FetchRefusal::kExpired), 2u);
}

TEST_F(BlockServerTest, RefusesTicketsForOthers) {
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
  EXPECT_TRUE(headers_.empty());
}

TEST_F(BlockServerTest, RefusesRequestsWithBadFields) {
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

TEST_F(BlockServerTest, ServesATicketOnce) {
  worker_->Seal(root_, keys_);
  const Ticket ticket = NewTicket();
  ASSERT_TRUE(Serve(ticket).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(Serve(ticket)));
  EXPECT_TRUE(headers_.empty());
  EXPECT_EQ(refused(FetchRefusal::kServedBefore), 1u);
}

TEST_F(BlockServerTest, RefusesChainsThatAreNotHeld) {
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

TEST_F(BlockServerTest, SendsNoMoreBlocksThanAskedFor) {
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

TEST_F(BlockServerTest, ChainThatVanishesWhileItIsServedEndsTheServe) {
  worker_->Seal(root_, keys_);
  const auto request = TestRequest(SealTicket(NewTicket(), kTestTicketKey), worker_->store->layout_fingerprint());
  int sent = 0;
  const absl::Status status = Serve(request, [&] {
    if (++sent == 2) worker_->store->EraseIdentity(root_);
  });
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(sent, 2);
  EXPECT_EQ(worker_->server.counters().served_blocks, 2u);
  EXPECT_EQ(refused(FetchRefusal::kNotHeld), 0u) << "it was not refused";
  ExpectNothingHeld();
}

TEST_F(BlockServerTest, LossyBlocksNeedAcceptance) {
  LossyFormats lossy;
  lossy.Add(KvFormat::kBf16);
  worker_->Seal(root_, keys_, lossy);
  EXPECT_TRUE(absl::IsNotFound(Serve(NewTicket())));
  Ticket accepting = NewTicket();
  accepting.accepted = lossy;
  EXPECT_TRUE(Serve(accepting).ok());
}

TEST_F(BlockServerTest, RemembersUsedTicketsUpToALimitUntilTheyExpire) {
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

TEST_F(BlockServerTest, BoundsConcurrentServesAndPinsOneBlockAtATime) {
  worker_.reset();
  options_.max_serves = 1;
  worker_.emplace(options_);
  worker_->Seal(root_, keys_);
  const auto request = TestRequest(SealTicket(NewTicket(), kTestTicketKey), worker_->store->layout_fingerprint());
  auto running = worker_->server.Admit(request);
  ASSERT_TRUE(running.ok()) << running.status();
  EXPECT_EQ((*running)->count(), keys_.size());
  ServedBlock block;
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE((*running)->Next(block).ok());
    EXPECT_EQ(worker_->store->GetBooks().pinned_blocks, 1u);
  }
  EXPECT_EQ(worker_->server.counters().serves_in_flight, 1u);
  EXPECT_EQ(worker_->server.counters().served_blocks, 0u) << "none was sent";
  const Ticket second = NewTicket();
  const absl::Status busy = Serve(second);
  EXPECT_TRUE(absl::IsResourceExhausted(busy));
  EXPECT_THAT(std::string(busy.message()), HasSubstr("fetches served"));
  EXPECT_EQ(refused(FetchRefusal::kBusy), 1u);
  running->reset();
  EXPECT_EQ(worker_->store->GetBooks().pinned_blocks, 1u) << "a block may outlive its serve";
  block.pin.Reset();
  EXPECT_TRUE(Serve(second).ok());
  ExpectNothingHeld();
}

TEST_F(BlockServerTest, CorruptBlockIsNotSentAndIsErased) {
  worker_->Seal(root_, keys_);
  {
    const auto acquired = worker_->store->Acquire(keys_, {}, absl::InfiniteFuture());
    worker_->device->bytes(acquired.pins[3].block())[5] ^= std::byte{1};
  }
  EXPECT_TRUE(absl::IsDataLoss(Serve(NewTicket())));
  EXPECT_EQ(headers_.size(), 3u);
  EXPECT_EQ(worker_->store->Lookup(keys_, {}).blocks[0], 3u);
  ExpectNothingHeld();
}

TEST_F(BlockServerTest, DiskThatFailsIsUnavailable) {
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
