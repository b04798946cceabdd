#include "worker/engine/resumer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/worker/engine/engine_world.h"

namespace kvmesh {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

constexpr uint32_t kBlocks = 8;

class ResumerTest : public testing::Test {
 protected:
  Resumed Resume(std::span<const BlockKey> keys, std::vector<PeerSource> sources = {},
                 absl::Duration sibling_wait = absl::ZeroDuration(), LossyFormats accepted = LossyFormats()) {
    return world_.Resume({.groups = {},
                          .root = root_,
                          .keys = keys,
                          .sources = sources,
                          .accepted = accepted,
                          .deadline = world_.clock.Now() + absl::Minutes(1),
                          .sibling_deadline = world_.clock.Now() + sibling_wait});
  }
  std::span<const BlockKey> First(size_t count) const { return std::span(keys_).first(count); }
  // The blocks after the pins, computed, sealed and let go of in order.
  void Compute(Resumed& result, std::span<const BlockKey> keys) {
    for (size_t i = result.pins.size(); i < keys.size(); ++i) {
      absl::StatusOr<BlockPin> pin = world_.SealOne(root_, keys, static_cast<uint32_t>(i));
      ASSERT_TRUE(pin.ok()) << pin.status();
      result.pins.push_back(*std::move(pin));
      result.to_compute.FinishThrough(keys[i]);
      ++computed_;
    }
  }
  void ExpectClean() {
    EXPECT_EQ(world_.resumer.computing().claimed(), 0u);
    EXPECT_EQ(world_.fetcher->transfers_in_flight(), 0u);
    world_.ExpectBalanced();
  }

  const RootKey root_ = TestRoot(1);
  const std::vector<BlockKey> keys_ = TestChain(root_, 1, kBlocks);
  EngineWorld world_{{.device_slots = 64, .host_slots = 64, .disk_blocks = 64, .max_pinned_fraction = 1.0}};
  std::atomic<uint64_t> computed_ = 0;
};

TEST_F(ResumerTest, LocalBlocksArePinnedAndTheRestIsLeftToCompute) {
  world_.SealChain(root_, First(5));
  {
    const Resumed result = Resume(keys_);
    ASSERT_EQ(result.pins.size(), 5u);
    EXPECT_TRUE(world_.AllHold(result.pins, keys_));
    EXPECT_EQ(result.to_compute.size(), 3u);
    EXPECT_EQ(result.TokensBySource(kTestBlockTokens), (HitTokensBySource{5 * kTestBlockTokens, 0, 0, 0}));
    EXPECT_EQ(world_.resumer.computing().claimed(), 3u);
  }
  EXPECT_EQ(world_.observer.requested(), kBlocks * kTestBlockTokens);
  EXPECT_THAT(world_.observer.misses(), ElementsAre(Pair("absent", 3 * kTestBlockTokens)));
  ExpectClean();
}

TEST_F(ResumerTest, NothingAskedForIsNothingDone) {
  const Resumed result = Resume({});
  EXPECT_TRUE(result.pins.empty());
  EXPECT_EQ(result.to_compute.size(), 0u);
  EXPECT_THAT(world_.observer.misses(), IsEmpty());
}

TEST_F(ResumerTest, LowerTiersArePromotedAndCountedByTier) {
  world_.SealChain(root_, keys_);
  world_.Churn(TestRoot(9), 64 + 58);  // pushes most of it to the host, and some of that to disk
  const auto before = world_.Lookup(keys_);
  ASSERT_LT(before[0], kBlocks);
  const Resumed result = Resume(keys_);
  ASSERT_EQ(result.pins.size(), kBlocks);
  EXPECT_TRUE(world_.AllHold(result.pins, keys_));
  const HitTokensBySource hits = world_.observer.hits();
  EXPECT_EQ(hits[0], before[0] * kTestBlockTokens);
  EXPECT_GT(hits[1] + hits[2], 0u);
  EXPECT_EQ(hits[0] + hits[1] + hits[2], kBlocks * kTestBlockTokens);
  EXPECT_EQ(hits[3], 0u);
}

TEST_F(ResumerTest, PeersBringWhatIsNotHere) {
  world_.SealChain(root_, First(2));
  {
    const Resumed result = Resume(keys_, {world_.OfferGood(root_, keys_, 5, 3), world_.OfferGood(root_, keys_, 2, 3)});
    ASSERT_EQ(result.pins.size(), kBlocks);
    EXPECT_TRUE(world_.AllHold(result.pins, keys_));
    EXPECT_EQ(result.TokensBySource(kTestBlockTokens),
              (HitTokensBySource{2 * kTestBlockTokens, 0, 0, 6 * kTestBlockTokens}));
  }
  EXPECT_THAT(world_.observer.misses(), IsEmpty());
  ExpectClean();
}

TEST_F(ResumerTest, ASourceThatStartsEarlierServesTheRest) {
  world_.SealChain(root_, First(3));
  const Resumed result = Resume(keys_, {world_.OfferGood(root_, keys_, 0, kBlocks)});
  ASSERT_EQ(result.pins.size(), kBlocks);
  EXPECT_TRUE(world_.AllHold(result.pins, keys_));
  EXPECT_EQ(result.TokensBySource(kTestBlockTokens)[0], 3 * kTestBlockTokens);
}

TEST_F(ResumerTest, SourcesThatLeaveAGapOrAreBehindAreNotAsked) {
  world_.SealChain(root_, First(4));
  const Resumed result = Resume(keys_, {world_.OfferGood(root_, keys_, 0, 4), world_.OfferGood(root_, keys_, 6, 2)});
  EXPECT_EQ(result.pins.size(), 4u);
  EXPECT_EQ(world_.transport.posted(), 0u);
  EXPECT_THAT(world_.observer.misses(), ElementsAre(Pair("absent", 4 * kTestBlockTokens)));
}

TEST_F(ResumerTest, ASourceThatFailsFallsBackToTheNext) {
  FakeTransport::Script broken = {.blocks = world_.Blocks(root_, keys_, 0, 3), .end = absl::UnavailableError("gone")};
  FakeTransport::Script lying = {.blocks = world_.Blocks(root_, keys_, 0, kBlocks)};
  lying.blocks[4].bytes[0] ^= std::byte{1};
  const Resumed result =
      Resume(keys_, {world_.Offer(0, kBlocks, std::move(broken)), world_.Offer(0, kBlocks, std::move(lying)),
                     world_.OfferGood(root_, keys_, 4, 4)});
  ASSERT_EQ(result.pins.size(), kBlocks);
  EXPECT_TRUE(world_.AllHold(result.pins, keys_));
  EXPECT_THAT(world_.observer.misses(), IsEmpty());
  EXPECT_EQ(world_.observer.fetches().size(), 3u);
}

TEST_F(ResumerTest, WithoutAGoodSourceTheRestIsComputedAndTheReasonCounted) {
  FakeTransport::Script broken = {.blocks = world_.Blocks(root_, keys_, 0, 3), .end = absl::UnavailableError("gone")};
  {
    Resumed result = Resume(keys_, {world_.Offer(0, kBlocks, std::move(broken))});
    EXPECT_EQ(result.pins.size(), 3u);
    EXPECT_EQ(result.to_compute.size(), 5u);
  }
  EXPECT_THAT(world_.observer.misses(), ElementsAre(Pair("fetch_unavailable", 5 * kTestBlockTokens)));
  ExpectClean();
}

TEST_F(ResumerTest, LossyCopiesAreRefusedUnlessAccepted) {
  LossyFormats lossy;
  lossy.Add(KvFormat::kF16);
  world_.SealChain(root_, First(2));
  for (uint32_t i = 2; i < kBlocks; ++i) ASSERT_TRUE(world_.SealOne(root_, keys_, i, lossy).ok());
  EXPECT_EQ(Resume(keys_).pins.size(), 2u);
  EXPECT_THAT(world_.observer.misses(), ElementsAre(Pair("lossy", 6 * kTestBlockTokens)));
  EXPECT_EQ(world_.observer.lossy_hits(), HitTokensBySource{});
  EXPECT_EQ(Resume(keys_, {}, absl::ZeroDuration(), lossy).pins.size(), kBlocks);
  EXPECT_EQ(world_.observer.lossy_hits(), (HitTokensBySource{6 * kTestBlockTokens, 0, 0, 0}));
  // An exact copy that a peer has replaces the lossy one.
  const Resumed exact = Resume(keys_, {world_.OfferGood(root_, keys_, 2, 6)});
  EXPECT_EQ(exact.pins.size(), kBlocks);
  EXPECT_EQ(world_.Lookup(keys_)[0], kBlocks);
}

TEST_F(ResumerTest, ASiblingThatComputesIsAwaited) {
  Resumed first = Resume(keys_);
  ASSERT_EQ(first.to_compute.size(), kBlocks);
  EXPECT_EQ(Resume(keys_).pins.size(), 0u);  // no patience: computes itself
  std::thread sibling([this] {
    const Resumed second = Resume(keys_, {}, kTestPatience);
    EXPECT_EQ(second.pins.size(), kBlocks);
    EXPECT_TRUE(world_.AllHold(second.pins, keys_));
  });
  Compute(first, keys_);
  sibling.join();
  EXPECT_EQ(computed_, kBlocks);
}

TEST_F(ResumerTest, ASiblingThatGivesUpHandsTheRestOn) {
  Resumed first = Resume(keys_);
  std::thread sibling([this] {
    Resumed second = Resume(keys_, {}, kTestPatience);
    EXPECT_EQ(second.pins.size(), 3u);
    EXPECT_EQ(second.to_compute.size(), kBlocks - 3);
    Compute(second, keys_);
  });
  Compute(first, First(3));
  first.to_compute.Reset();
  sibling.join();
  EXPECT_EQ(computed_, kBlocks);
}

// A sequence is opened and nothing comes of it: one sibling computes in its place, and the others wait for that one.
TEST_F(ResumerTest, AnIdleSiblingHoldsUpNobodyForLong) {
  const Resumed idle = Resume(keys_);
  ASSERT_EQ(idle.to_compute.size(), kBlocks);
  EXPECT_EQ(Resume(keys_).to_compute.size(), 0u);
  world_.clock.AdvanceTo(world_.clock.Now() + EngineWorld::kMaxClaimIdle);
  Resumed second = Resume(keys_, {}, absl::Hours(1));
  EXPECT_EQ(second.pins.size(), 0u);
  ASSERT_EQ(second.to_compute.size(), kBlocks);
  std::thread third([this] { EXPECT_EQ(Resume(keys_, {}, absl::Hours(1)).pins.size(), kBlocks); });
  Compute(second, keys_);
  third.join();
  EXPECT_EQ(computed_, kBlocks);
}

// Eight prompts with one prefix and ends of their own: the prefix is computed once.
TEST_F(ResumerTest, SimultaneousSiblingsComputeTheSharedPrefixOnce) {
  constexpr int kSiblings = 8;
  constexpr uint32_t kOwn = 2;
  std::vector<std::thread> siblings;
  Gate start;
  start.Close();
  for (uint32_t s = 0; s < kSiblings; ++s) {
    siblings.emplace_back([&, s] {
      std::vector<BlockKey> keys = keys_;
      for (uint32_t i = 0; i < kOwn; ++i) keys.push_back(TestChild(keys.back(), 100 + s));
      start.Pass();
      Resumed result = Resume(keys, {}, kTestPatience);
      Compute(result, keys);
      EXPECT_TRUE(world_.AllHold(result.pins, keys));
    });
  }
  ASSERT_TRUE(start.AwaitWaiting(kSiblings));
  start.Open();
  for (std::thread& sibling : siblings) sibling.join();
  EXPECT_EQ(computed_, kBlocks + kSiblings * kOwn);
  ExpectClean();
}

TEST_F(ResumerTest, SimultaneousResumesOfOneMissingSpanCauseOneTransfer) {
  constexpr int kThreads = 64;
  for (uint32_t round = 0; round < 20; ++round) {
    world_.store->EraseIdentity(root_);
    const uint64_t posted = world_.transport.posted();
    std::vector<PeerSource> sources;
    for (int t = 0; t < kThreads; ++t) sources.push_back(world_.OfferGood(root_, keys_, 0, kBlocks));
    Gate start;
    start.Close();
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        start.Pass();
        const Resumed result = Resume(keys_, {sources[static_cast<size_t>(t)]});
        EXPECT_EQ(result.pins.size(), kBlocks);
        EXPECT_TRUE(world_.AllHold(result.pins, keys_));
      });
    }
    ASSERT_TRUE(start.AwaitWaiting(kThreads));
    start.Open();
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(world_.transport.posted() - posted, 1u) << "round " << round;
  }
  ExpectClean();
}

TEST_F(ResumerTest, ThoseWhoWaitForAFetchThatFailsTryTheirOwnSources) {
  world_.transport.wait_gate.Close();
  std::vector<std::thread> threads;
  const PeerSource bad = world_.Offer(0, kBlocks, {.blocks = {}, .end = absl::UnavailableError("gone")});
  threads.emplace_back([&] {
    const Resumed result = Resume(keys_, {bad}, absl::ZeroDuration());
    EXPECT_THAT(result.pins.size(), testing::AnyOf(0u, kBlocks));
  });
  EXPECT_TRUE(world_.transport.wait_gate.AwaitWaiting(1));
  const PeerSource good = world_.OfferGood(root_, keys_, 0, kBlocks);
  threads.emplace_back([&] { EXPECT_EQ(Resume(keys_, {good}).pins.size(), kBlocks); });
  world_.transport.wait_gate.Open();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(world_.transport.posted(), 2u);
  ExpectClean();
}

TEST_F(ResumerTest, APoolFullOfPinsStopsTheResume) {
  EngineWorld world({.device_slots = 8, .max_pinned_fraction = 0.5});
  const std::vector<BlockKey> others = TestChain(TestRoot(2), 1, 4);
  const std::vector<BlockPin> pins = world.SealChain(TestRoot(2), others);
  ASSERT_EQ(pins.size(), 4u);
  const PeerSource source = world.OfferGood(root_, keys_, 0, kBlocks);
  const Resumed result = world.Resume({.groups = {},
                                       .root = root_,
                                       .keys = keys_,
                                       .sources = {&source, 1},
                                       .accepted = LossyFormats(),
                                       .deadline = absl::InfiniteFuture(),
                                       .sibling_deadline = absl::InfinitePast()});
  EXPECT_TRUE(result.pins.empty());
  EXPECT_EQ(world.transport.posted(), 0u);
  EXPECT_THAT(world.observer.misses(),
              UnorderedElementsAre(Pair("fetch_resource_exhausted", kBlocks * kTestBlockTokens)));
}

}  // namespace
}  // namespace kvmesh
