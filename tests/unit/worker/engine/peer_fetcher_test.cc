#include "worker/engine/peer_fetcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "tests/unit/worker/engine/engine_world.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

constexpr uint32_t kBlocks = 4;

class PeerFetcherTest : public testing::Test {
 protected:
  PeerFetcher::Result Fetch(const PeerSource& source) {
    const BlockKey parent = source.first_block == 0 ? RootAsParent(root_) : keys_[source.first_block - 1];
    return world_.fetcher->Fetch({.store = world_.store.get(),
                                  .root = root_,
                                  .parent = parent,
                                  .keys = std::span(keys_).subspan(source.first_block, source.block_count),
                                  .first_block = source.first_block},
                                 source, deadline_);
  }
  FetchSpan WholeChain(EngineWorld& world) const {
    return {.store = world.store.get(), .root = root_, .parent = RootAsParent(root_), .keys = keys_};
  }
  // Nothing is left of a pull whose pins are dropped, and every held block has its bytes.
  void ExpectClean() {
    EXPECT_EQ(world_.fetcher->transfers_in_flight(), 0u);
    EXPECT_EQ(world_.fetcher->quarantined_blocks(), 0u);
    {
      const BlockStore::Acquired held = world_.Acquire(keys_);
      EXPECT_TRUE(world_.AllHold(held.pins, keys_));
    }
    world_.ExpectBalanced();
  }
  // Pulls blocks of which the `wrong`th was changed by `change`: the pull stops there with DATA_LOSS.
  void ExpectRefused(size_t wrong, const std::function<void(FakeTransport::SentBlock&)>& change) {
    std::vector<FakeTransport::SentBlock> blocks = world_.Blocks(root_, keys_, 0, kBlocks);
    change(blocks[wrong]);
    const PeerFetcher::Result result = Fetch(world_.Offer(0, kBlocks, {.blocks = std::move(blocks)}));
    EXPECT_TRUE(absl::IsDataLoss(result.status)) << result.status;
    EXPECT_EQ(result.pins.size(), wrong);
    EXPECT_EQ(world_.Lookup(keys_)[0], wrong);
    EXPECT_TRUE(world_.NoneHeld(std::span(keys_).subspan(wrong)));
  }

  const RootKey root_ = TestRoot(1);
  const std::vector<BlockKey> keys_ = TestChain(root_, 1, kBlocks);
  EngineWorld world_{{.device_slots = 16, .max_pinned_fraction = 1.0}};
  const absl::Time deadline_ = world_.clock.Now() + absl::Seconds(10);
};

TEST_F(PeerFetcherTest, WholeSpanIsPublishedAndPinned) {
  {
    const PeerFetcher::Result result = Fetch(world_.OfferGood(root_, keys_, 0, kBlocks));
    EXPECT_TRUE(result.status.ok()) << result.status;
    ASSERT_EQ(result.pins.size(), kBlocks);
    EXPECT_TRUE(world_.AllHold(result.pins, keys_));
    EXPECT_EQ(world_.store->GetBooks().pinned_blocks, kBlocks);
  }
  EXPECT_EQ(world_.Lookup(keys_)[0], kBlocks);
  const std::vector<RecordingObserver::FetchSeen> fetches = world_.observer.fetches();
  ASSERT_EQ(fetches.size(), 1u);
  EXPECT_EQ(fetches[0].peer, "peer-1");
  EXPECT_EQ(fetches[0].transport, "fake");
  EXPECT_EQ(fetches[0].code, absl::StatusCode::kOk);
  EXPECT_EQ(fetches[0].bytes, kBlocks * static_cast<uint64_t>(kTestLayout.block_bytes));
  ExpectClean();
}

TEST_F(PeerFetcherTest, ASpanInMidChainHangsOnWhatIsHeld) {
  world_.SealChain(root_, std::span(keys_).first(2));
  EXPECT_EQ(Fetch(world_.OfferGood(root_, keys_, 2, 2)).pins.size(), 2u);
  EXPECT_EQ(world_.Lookup(keys_)[0], kBlocks);
  ExpectClean();
}

TEST_F(PeerFetcherTest, ASpanWhoseParentIsNotHeldIsNotFindable) {
  const PeerFetcher::Result result = Fetch(world_.OfferGood(root_, keys_, 2, 2));
  EXPECT_TRUE(absl::IsFailedPrecondition(result.status)) << result.status;
  EXPECT_TRUE(result.pins.empty());
  EXPECT_TRUE(world_.NoneHeld(keys_));
  ExpectClean();
}

TEST_F(PeerFetcherTest, AnErrorAtBlockKLeavesTheFirstK) {
  for (uint32_t k = 0; k < kBlocks; ++k) {
    world_.store->EraseIdentity(root_);
    const PeerFetcher::Result result = Fetch(world_.Offer(
        0, kBlocks, {.blocks = world_.Blocks(root_, keys_, 0, k), .end = absl::UnavailableError("the peer is gone")}));
    EXPECT_TRUE(absl::IsUnavailable(result.status)) << result.status;
    EXPECT_EQ(result.pins.size(), k);
    EXPECT_EQ(world_.Lookup(keys_)[0], k);
  }
  ExpectClean();
}

TEST_F(PeerFetcherTest, WrongBytesAreNeverFindable) {
  const std::vector<size_t> places = {0, 4095, 4096, static_cast<size_t>(kTestLayout.block_bytes) - 1};
  for (size_t k = 0; k < kBlocks; ++k) {
    world_.store->EraseIdentity(root_);
    ExpectRefused(k, [&](FakeTransport::SentBlock& block) { block.bytes[places[k]] ^= std::byte{1}; });
  }
  EXPECT_EQ(world_.Misses(MissReason::kCorrupt), kBlocks);
  ExpectClean();
}

TEST_F(PeerFetcherTest, WrongHeadersAreRefused) {
  ExpectRefused(0, [](FakeTransport::SentBlock& block) { block.header.root = TestRoot(2); });
  ExpectRefused(1, [&](FakeTransport::SentBlock& block) { block.header.key = keys_[2]; });
  ExpectRefused(1, [&](FakeTransport::SentBlock& block) { block.header.parent = RootAsParent(root_); });
  ExpectRefused(1, [](FakeTransport::SentBlock& block) { block.header.start_position += kTestBlockTokens; });
  ExpectRefused(2, [](FakeTransport::SentBlock& block) { block.header.group = 1; });
  ExpectRefused(2, [](FakeTransport::SentBlock& block) { block.header.shard.heads = 1; });
  ExpectRefused(2, [](FakeTransport::SentBlock& block) { block.header.layout.bytes[0] ^= 1; });
  ExpectRefused(2, [](FakeTransport::SentBlock& block) { block.header.format = KvFormat::kBf16; });
  ExpectRefused(2, [](FakeTransport::SentBlock& block) { block.header.payload_bytes -= 8; });
  // A history that the checksum does not cover would be a lie.
  ExpectRefused(3, [](FakeTransport::SentBlock& block) { block.header.lossy_formats.Add(KvFormat::kF16); });
  ExpectClean();
}

TEST_F(PeerFetcherTest, ABlockOfAnotherIdentityIsRefusedThoughItsBytesAreWhole) {
  const RootKey other = TestRoot(2);
  const std::vector<BlockKey> theirs = TestChain(other, 1, kBlocks);
  const PeerFetcher::Result result =
      Fetch(world_.Offer(0, kBlocks, {.blocks = world_.Blocks(other, theirs, 0, kBlocks)}));
  EXPECT_THAT(result.status.ToString(), HasSubstr("root"));
  EXPECT_TRUE(world_.NoneHeld(theirs));
  ExpectClean();
}

TEST_F(PeerFetcherTest, MoreBlocksThanAskedForAreLeft) {
  PeerSource source = world_.OfferGood(root_, keys_, 0, kBlocks);
  source.block_count = 2;
  const PeerFetcher::Result result = Fetch(source);
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.pins.size(), 2u);
  EXPECT_TRUE(world_.NoneHeld(std::span(keys_).subspan(2)));
}

TEST_F(PeerFetcherTest, TheDeadlineEndsAPullThatHangs) {
  const PeerSource source =
      world_.Offer(0, kBlocks, {.blocks = world_.Blocks(root_, keys_, 0, 2), .end = {}, .hangs = true});
  uint64_t waits = 0;
  world_.transport.OnWait([&] {
    if (++waits == 4) world_.clock.AdvanceTo(deadline_);
  });
  const PeerFetcher::Result result = Fetch(source);
  EXPECT_TRUE(absl::IsDeadlineExceeded(result.status)) << result.status;
  EXPECT_EQ(result.pins.size(), 2u);
  EXPECT_EQ(world_.transport.cancelled(), 1u);
  EXPECT_EQ(world_.observer.fetches().at(0).code, absl::StatusCode::kDeadlineExceeded);
}

TEST_F(PeerFetcherTest, SlotsThatMayStillBeWrittenAreQuarantined) {
  std::vector<FakeTransport::SentBlock> blocks = world_.Blocks(root_, keys_, 0, kBlocks);
  blocks[0].bytes[5] ^= std::byte{1};
  const PeerSource source = world_.Offer(0, kBlocks, {.blocks = std::move(blocks), .end = {}, .lingers = true});
  EXPECT_TRUE(absl::IsDataLoss(Fetch(source).status));
  EXPECT_EQ(world_.fetcher->quarantined_blocks(), kBlocks);
  EXPECT_EQ(world_.fetcher->transfers_in_flight(), 0u);
  world_.fetcher->SweepQuarantine();
  EXPECT_EQ(world_.fetcher->quarantined_blocks(), kBlocks);

  // All other slots are taken and filled; what comes late falls on none of them.
  const RootKey other = TestRoot(2);
  const std::vector<BlockKey> chain = TestChain(other, 1, 16 - kBlocks);
  {
    const std::vector<BlockPin> pins = world_.SealChain(other, chain);
    ASSERT_EQ(pins.size(), 16 - kBlocks);
    EXPECT_TRUE(absl::IsResourceExhausted(world_.store->Allocate().status()));
    world_.transport.WriteLate();
    EXPECT_TRUE(world_.AllHold(pins, chain));
  }
  EXPECT_TRUE(world_.NoneHeld(keys_));
  world_.transport.LetQuiesce();
  world_.fetcher->SweepQuarantine();
  ExpectClean();
  EXPECT_EQ(Fetch(world_.OfferGood(root_, keys_, 0, kBlocks)).pins.size(), kBlocks);
}

TEST_F(PeerFetcherTest, TheNextFetchSweepsTheQuarantine) {
  Fetch(world_.Offer(0, kBlocks, {.blocks = {}, .end = absl::UnavailableError("gone"), .lingers = true}));
  EXPECT_EQ(world_.fetcher->quarantined_blocks(), kBlocks);
  world_.transport.LetQuiesce();
  Fetch(world_.OfferGood(root_, keys_, 0, 1));
  ExpectClean();
}

TEST_F(PeerFetcherTest, AFetchBeyondTheRoomTakesTheLeadingBlocks) {
  EngineWorld world({.device_slots = 3, .max_pinned_fraction = 1.0});
  const PeerSource source = world.OfferGood(root_, keys_, 0, kBlocks);
  {
    const PeerFetcher::Result result = world.fetcher->Fetch(WholeChain(world), source, deadline_);
    EXPECT_TRUE(absl::IsResourceExhausted(result.status)) << result.status;
    EXPECT_EQ(result.pins.size(), 3u);
    const PeerFetcher::Result none = world.fetcher->Fetch(WholeChain(world), source, deadline_);
    EXPECT_TRUE(absl::IsResourceExhausted(none.status)) << none.status;
    EXPECT_TRUE(none.pins.empty());
  }
  world.ExpectBalanced();
}

TEST_F(PeerFetcherTest, TheNextTransportTakesWhatOneCannotReach) {
  FakeTransport fast("fast");
  FakeTransport slow("slow");
  PeerFetcher fetcher({&fast, &slow}, world_.clock, world_.observer);
  PeerSource source = {.first_block = 0, .block_count = kBlocks, .peer_id = "p", .peer_address = "p:1", .ticket = "t"};
  fast.RefusePrepare(absl::UnimplementedError("no way there"));
  slow.Offer("t", {.blocks = world_.Blocks(root_, keys_, 0, kBlocks)});
  EXPECT_EQ(fetcher.Fetch(WholeChain(world_), source, deadline_).pins.size(), kBlocks);
  EXPECT_EQ(fast.posted(), 0u);
  EXPECT_EQ(world_.observer.fetches().at(0).transport, "slow");

  slow.RefusePrepare(absl::ResourceExhaustedError("too many transfers"));
  const PeerFetcher::Result refused = fetcher.Fetch(WholeChain(world_), source, deadline_);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status)) << refused.status;
  EXPECT_EQ(world_.observer.fetches().at(1).transport, "none");
  ExpectClean();
}

TEST_F(PeerFetcherTest, ATicketServesOnce) {
  const PeerSource source = world_.OfferGood(root_, keys_, 0, kBlocks);
  EXPECT_TRUE(Fetch(source).status.ok());
  EXPECT_TRUE(absl::IsPermissionDenied(Fetch(source).status));
  ExpectClean();
}

}  // namespace
}  // namespace kvmesh
