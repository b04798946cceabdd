// What a resume pulls from peers for layers with a window.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "kvstore/block/key_chain.h"
#include "tests/unit/worker/engine/engine_world.h"

namespace kvmesh {
namespace {

constexpr uint32_t kBlocks = 8;
constexpr uint32_t kNeeded = 2;  // blocks before a boundary

class WindowPullTest : public testing::Test {
 protected:
  WindowPullTest() {
    groups_ = {ChainGroup(*world_.store), ChainGroup(*world_.store)};
    groups_[1].number = 1;
    groups_[1].window = kNeeded * kTestBlockTokens;
    for (const BlockKey& key : keys_) window_keys_.push_back(ComputeGroupKey(key, 1));
  }

  ResumeResult Resume(const std::vector<PeerSource>& sources, bool with_chain = true) {
    return world_.resumer.Resume({.groups = std::span(groups_).subspan(with_chain ? 0 : 1),
                                  .root = root_,
                                  .keys = keys_,
                                  .tokens = kBlocks * kTestBlockTokens + 1,
                                  .sources = sources,
                                  .accepted = {},
                                  .deadline = world_.clock.Now() + absl::Minutes(1),
                                  .sibling_deadline = world_.clock.Now()});
  }
  void SealWindow(uint32_t index) {
    absl::StatusOr<PrivateBlock> block = world_.store->Allocate();
    ASSERT_TRUE(block.ok()) << block.status();
    world_.Fill(*block, window_keys_[index]);
    BlockStore::SealInfo info = StoreWorld::InfoAt(root_, keys_, index);
    info.group = 1;
    ASSERT_TRUE(world_.store->Seal(*std::move(block), info).ok());
  }
  // A peer that has the chain [first, first + count) and the window's last `window` blocks before its end.
  PeerSource Offer(uint32_t first, uint32_t count, uint32_t window) {
    PeerSource source = world_.OfferGood(root_, keys_, first, count);
    world_.transport.Offer(source.ticket, {.blocks = world_.Blocks(root_, keys_, first + count - window, window, 1)},
                           1);
    return source;
  }
  // The result goes on after `boundary` blocks and has what that takes.
  void ExpectCovered(const ResumeResult& result, uint32_t boundary) {
    ASSERT_EQ(result.blocks(), boundary);
    const std::vector<HeldBlock>& window = result.held.back();
    ASSERT_EQ(window.size(), boundary == 0 ? 0 : kNeeded);
    for (size_t i = 0; i < window.size(); ++i) {
      EXPECT_EQ(window[i].index, boundary - kNeeded + i);
      std::vector<std::byte> bytes(static_cast<size_t>(kTestLayout.block_bytes));
      ASSERT_TRUE(world_.device->Read(window[i].pin.block(), bytes).ok());
      EXPECT_TRUE(HoldsBlock(window_keys_[window[i].index], bytes));
    }
  }

  const RootKey root_ = TestRoot(1);
  const std::vector<BlockKey> keys_ = TestChain(root_, 1, kBlocks);
  std::vector<BlockKey> window_keys_;
  EngineWorld world_{{.device_slots = 64, .max_pinned_fraction = 1.0, .max_group = 1}};
  std::vector<CacheGroup> groups_;
};

TEST_F(WindowPullTest, TheChainAndTheWindowBeforeItsEndArePulled) {
  const ResumeResult result = Resume({Offer(0, kBlocks, kNeeded)});
  ExpectCovered(result, kBlocks);
  EXPECT_EQ(result.TokensBySource(kTestBlockTokens), (HitTokensBySource{0, 0, 0, kBlocks * kTestBlockTokens}));
  EXPECT_EQ(world_.observer.fetches().size(), 2u);
}

TEST_F(WindowPullTest, OnlyWhatIsMissingIsPulled) {
  world_.SealChain(root_, std::span(keys_).first(kBlocks));
  SealWindow(kBlocks - 2);
  const ResumeResult result = Resume({Offer(kBlocks - 1, 1, 1)});
  ExpectCovered(result, kBlocks);
  EXPECT_EQ(world_.observer.fetches().size(), 1u);
}

TEST_F(WindowPullTest, AModelWithoutAChainPullsWindowsAlone) {
  const ResumeResult result = Resume({Offer(0, kBlocks, kNeeded)}, false);
  ExpectCovered(result, kBlocks);
  EXPECT_EQ(result.TokensBySource(kTestBlockTokens), (HitTokensBySource{0, 0, 0, kBlocks * kTestBlockTokens}));
  EXPECT_EQ(world_.observer.fetches().size(), 1u);
}

TEST_F(WindowPullTest, APeerThatLostItsWindowLeavesTheBoundaryThatIsCoveredHere) {
  world_.SealChain(root_, std::span(keys_).first(5));
  SealWindow(2);
  SealWindow(3);
  PeerSource source = world_.OfferGood(root_, keys_, 5, 3);
  world_.transport.Offer(source.ticket, {.blocks = {}, .end = absl::NotFoundError("chain: the span is not held")}, 1);
  const ResumeResult result = Resume({source});
  ExpectCovered(result, 4);
  EXPECT_EQ(world_.observer.misses().at("window"), 4 * kTestBlockTokens);
}

TEST_F(WindowPullTest, HalfAWindowIsNone) {
  PeerSource source = world_.OfferGood(root_, keys_, 0, kBlocks);
  std::vector<FakeTransport::SentBlock> blocks = world_.Blocks(root_, keys_, kBlocks - kNeeded, kNeeded, 1);
  blocks[1].bytes[3] ^= std::byte{1};
  world_.transport.Offer(source.ticket, {.blocks = std::move(blocks)}, 1);
  ExpectCovered(Resume({source}), 0);
  EXPECT_EQ(world_.Lookup({&window_keys_[kBlocks - 1], 1})[0], 0u);
}

TEST_F(WindowPullTest, BlocksOfAnotherGroupOrPlaceAreRefused) {
  for (const auto& [first, group] : {std::pair(kBlocks - kNeeded, 0u), {kBlocks - kNeeded - 1, 1u}}) {
    PeerSource source = world_.OfferGood(root_, keys_, 0, kBlocks);
    world_.transport.Offer(source.ticket, {.blocks = world_.Blocks(root_, keys_, first, kNeeded, group)}, 1);
    ExpectCovered(Resume({source}), 0);
    EXPECT_EQ(world_.observer.fetches().back().code, absl::StatusCode::kDataLoss);
  }
}

TEST_F(WindowPullTest, SiblingsPullAWindowOnce) {
  constexpr int kSiblings = 8;
  const std::vector<PeerSource> sources = {Offer(0, kBlocks, kNeeded)};
  std::vector<std::thread> threads;
  for (int i = 0; i < kSiblings; ++i) {
    threads.emplace_back([&] { ExpectCovered(Resume(sources), kBlocks); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(world_.observer.fetches().size(), 2u) << "the chain and the window";
}

}  // namespace
}  // namespace kvmesh
