// Blocks of layer groups above 0: beside the chain, each on its own.
#include <algorithm>
#include <set>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/kvstore/tiers/store_world.h"

namespace kvmesh {
namespace {

class BlockStoreGroupsTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kGroup = 1;

  BlockStoreGroupsTest()
      : world_({.device_slots = 8, .host_slots = 4, .disk_blocks = 80, .max_pinned_fraction = 1, .max_group = kGroup}),
        root_(TestRoot(1)),
        chain_(TestChain(root_, 1, 6)) {
    for (const BlockKey& key : chain_) keys_.push_back(ComputeGroupKey(key, kGroup));
  }

  absl::StatusOr<BlockPin> SealGroupBlock(uint32_t index) {
    absl::StatusOr<PrivateBlock> block = world_.store->Allocate();
    if (!block.ok()) return block.status();
    world_.Fill(*block, keys_[index]);
    BlockStore::SealInfo info = StoreWorld::InfoAt(root_, chain_, index);
    info.group = kGroup;
    return world_.store->Seal(*std::move(block), info);
  }
  bool Held(uint32_t index) { return world_.store->Lookup({&keys_[index], 1}, LossyFormats()).blocks[1] > 0; }

  StoreWorld world_;
  const RootKey root_;
  const std::vector<BlockKey> chain_;
  std::vector<BlockKey> keys_;
};

TEST_F(BlockStoreGroupsTest, NeedNoParentAndAreNoChain) {
  for (const uint32_t index : {3u, 5u, 0u}) {
    const absl::StatusOr<BlockPin> pin = SealGroupBlock(index);
    ASSERT_TRUE(pin.ok()) << pin.status();
    EXPECT_EQ(pin->header().group, kGroup);
    EXPECT_EQ(pin->header().start_position, index * kTestBlockTokens);
    EXPECT_TRUE(Held(index));
  }
  EXPECT_FALSE(Held(4));
  for (const std::vector<BlockKey>& keys : {chain_, keys_}) {
    EXPECT_TRUE(absl::IsNotFound(world_.store->ChainKeys(root_, keys[3], 3, 1).status()));
    EXPECT_TRUE(absl::IsNotFound(world_.store->PinForRead(root_, keys[3], 3, 1, LossyFormats()).status()));
  }
  // A chain's block can't hang below one.
  BlockStore::SealInfo info = StoreWorld::InfoAt(root_, chain_, 4);
  info.parent = keys_[3];
  EXPECT_FALSE(Held(4));
  absl::StatusOr<PrivateBlock> block = world_.store->Allocate();
  ASSERT_TRUE(block.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(world_.store->Seal(*std::move(block), info).status()));
}

TEST_F(BlockStoreGroupsTest, SpansAreReadByTheKeysOfTheChain) {
  for (const uint32_t index : {2u, 3u, 4u}) ASSERT_TRUE(SealGroupBlock(index).ok());
  const auto keys = world_.store->ChainKeys(root_, chain_[4], 2, 3, kGroup);
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(*keys, std::vector<BlockKey>(chain_.begin() + 2, chain_.begin() + 5));
  const auto pins = world_.store->PinForRead(root_, chain_[3], 2, 2, LossyFormats(), kGroup);
  ASSERT_TRUE(pins.ok()) << pins.status();
  ASSERT_EQ(pins->size(), 2u);
  for (const uint32_t i : {0u, 1u}) {
    EXPECT_EQ((*pins)[i].header().key, chain_[2 + i]);
    EXPECT_EQ((*pins)[i].header().group, kGroup);
  }
  // Beyond what is held, at another index, of another identity or group, or of nothing.
  for (const auto& [root, last, first, count, group] : {std::tuple(root_, 4u, 1u, 4u, kGroup),
                                                        {root_, 4u, 3u, 3u, kGroup},
                                                        {TestRoot(2), 4u, 2u, 3u, kGroup},
                                                        {root_, 4u, 2u, 3u, 0u},
                                                        {root_, 4u, 5u, 0u, kGroup}}) {
    EXPECT_TRUE(absl::IsNotFound(world_.store->ChainKeys(root, chain_[last], first, count, group).status()));
    EXPECT_TRUE(
        absl::IsNotFound(world_.store->PinForRead(root, chain_[last], first, count, LossyFormats(), group).status()));
  }
}

// The boundaries that the events after `cursor` leave usable, by index in `chain`.
std::set<uint32_t> Usable(BlockStore& store, uint64_t cursor, const std::vector<BlockKey>& chain,
                          std::set<uint32_t> usable = {}) {
  const absl::StatusOr<std::vector<StoreEvent>> events = store.events().ReadAfter(cursor, SIZE_MAX);
  EXPECT_TRUE(events.ok()) << events.status();
  for (const StoreEvent& event : *events) {
    const auto index = static_cast<uint32_t>(std::find(chain.begin(), chain.end(), event.key) - chain.begin());
    if (event.kind == StoreEvent::Kind::kUsable) {
      EXPECT_TRUE(usable.insert(index).second) << index;
    } else if (event.kind == StoreEvent::Kind::kUnusable) {
      EXPECT_EQ(usable.erase(index), 1u) << index;
    }
  }
  return usable;
}

TEST_F(BlockStoreGroupsTest, UsableBoundariesAreToldInEventsAndCutsAndFoundAgainOnDisk) {
  StoreWorld world(
      {.device_slots = 8, .disk_blocks = 32, .max_pinned_fraction = 1, .max_group = kGroup, .window_blocks = 2});
  const auto seal = [&](uint32_t index, LossyFormats lossy_formats = LossyFormats()) {
    absl::StatusOr<PrivateBlock> block = world.store->Allocate();
    ASSERT_TRUE(block.ok());
    world.Fill(*block, keys_[index]);
    BlockStore::SealInfo info = StoreWorld::InfoAt(root_, chain_, index, lossy_formats);
    info.group = kGroup;
    ASSERT_TRUE(world.store->Seal(*std::move(block), info).ok());
  };
  for (const uint32_t index : {0u, 3u, 2u, 5u}) seal(index);
  EXPECT_EQ(Usable(*world.store, 0, chain_), (std::set<uint32_t>{0, 3}));
  LossyFormats lossy;
  lossy.Add(KvFormat::kInt8);
  seal(4, lossy);
  EXPECT_EQ(Usable(*world.store, 0, chain_), (std::set<uint32_t>{0, 3})) << "a lossy copy is no exact hit";
  seal(4);
  EXPECT_EQ(Usable(*world.store, 0, chain_), (std::set<uint32_t>{0, 3, 4, 5}));
  world.Churn(TestRoot(2), 20);
  EXPECT_EQ(Usable(*world.store, 0, chain_), (std::set<uint32_t>{0, 3, 4, 5})) << "a demotion changes nothing";

  world.disk->Vanish(keys_[3]);
  world.Restart();
  const BlockStore::Cut cut = world.store->TakeCut();
  EXPECT_THAT(cut.boundaries, testing::UnorderedElementsAre(chain_[0], chain_[5]));
  EXPECT_EQ(world.store->EraseIdentity(root_), 4u);
  EXPECT_EQ(Usable(*world.store, cut.sequence, chain_, {0, 5}), std::set<uint32_t>());
  EXPECT_TRUE(world.store->TakeCut().boundaries.empty());
}

TEST_F(BlockStoreGroupsTest, AreInNoEventDigestOrCut) {
  world_.SealChain(root_, std::span(chain_).first(2));
  const uint64_t events = world_.store->events().last();
  const BlockStore::Books before = world_.store->GetBooks();
  ASSERT_TRUE(SealGroupBlock(0).ok());
  ASSERT_TRUE(SealGroupBlock(4).ok());
  EXPECT_EQ(world_.store->events().last(), events);
  EXPECT_EQ(world_.store->GetBooks().digests, before.digests);
  EXPECT_EQ(world_.store->TakeCut().blocks.size(), 2u);
  EXPECT_EQ(world_.store->GetBooks().tiers[0].used, 4u);
  // Erased with their identity.
  EXPECT_EQ(world_.store->EraseIdentity(root_), 4u);
  EXPECT_FALSE(Held(0) || Held(4));
  EXPECT_EQ(world_.store->GetBooks().tiers[0].used, 0u);
}

TEST_F(BlockStoreGroupsTest, AreEvictedPromotedAndRecoveredOneByOne) {
  for (uint32_t i = 0; i < 6; ++i) ASSERT_TRUE(SealGroupBlock(i).ok());
  for (const uint32_t round : {0u, 1u}) {
    world_.Churn(TestRoot(2 + round), 30);
    for (uint32_t i = 0; i < 6; ++i) {
      BlockStore::Acquired acquired = world_.Acquire(std::span(keys_).subspan(i, 1));
      ASSERT_EQ(acquired.pins.size(), 1u) << "block " << i << " in round " << round;
      EXPECT_EQ(acquired.found_in[0], Tier::kDisk);
      EXPECT_TRUE(world_.AllHold(acquired.pins, std::span(keys_).subspan(i, 1)));
    }
  }
  world_.disk->Corrupt(keys_[2], 100);
  world_.Restart();
  for (uint32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(world_.Acquire(std::span(keys_).subspan(i, 1)).pins.size(), i == 2 ? 0u : 1u) << "block " << i;
  }
}

}  // namespace
}  // namespace kvmesh
