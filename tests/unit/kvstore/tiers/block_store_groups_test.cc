// Blocks of layer groups above 0: beside the chain, each on its own.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/kvstore/tiers/store_world.h"

namespace kvmesh {
namespace {

class BlockStoreGroupsTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kGroup = 1;

  BlockStoreGroupsTest()
      : world_({.device_slots = 8, .host_slots = 4, .disk_blocks = 32, .max_pinned_fraction = 1, .max_group = kGroup}),
        root_(TestRoot(1)),
        chain_(TestChain(root_, 1, 6)) {
    for (const BlockKey& key : chain_) keys_.push_back(ComputeGroupKey(key, kGroup));
  }

  absl::StatusOr<BlockPin> SealGroupBlock(uint32_t index) {
    absl::StatusOr<PrivateBlock> block = world_.store->Allocate();
    if (!block.ok()) return block.status();
    world_.Fill(*block, keys_[index]);
    const BlockKey parent = index == 0 ? RootAsParent(root_) : keys_[index - 1];
    return world_.store->Seal(*std::move(block),
                              {.root = root_, .key = keys_[index], .parent = parent, .index = index, .group = kGroup});
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
  EXPECT_TRUE(absl::IsNotFound(world_.store->ChainKeys(root_, keys_[3], 3, 1).status()));
  EXPECT_TRUE(absl::IsNotFound(world_.store->ChainKeys(root_, keys_[3], 2, 2).status()));
  EXPECT_TRUE(absl::IsNotFound(world_.store->PinForRead(root_, keys_[5], 3, 3, LossyFormats()).status()));
  // A chain's block can't hang below one.
  BlockStore::SealInfo info = StoreWorld::InfoAt(root_, chain_, 4);
  info.parent = keys_[3];
  absl::StatusOr<PrivateBlock> block = world_.store->Allocate();
  ASSERT_TRUE(block.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(world_.store->Seal(*std::move(block), info).status()));
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
  world_.Churn(TestRoot(2), 30);
  for (uint32_t i = 0; i < 6; ++i) {
    BlockStore::Acquired acquired = world_.Acquire(std::span(keys_).subspan(i, 1));
    ASSERT_EQ(acquired.pins.size(), 1u) << "block " << i;
    EXPECT_EQ(acquired.found_in[0], Tier::kDisk);
    EXPECT_TRUE(world_.AllHold(acquired.pins, std::span(keys_).subspan(i, 1)));
  }
  world_.disk->Corrupt(keys_[2], 100);
  world_.Restart();
  for (uint32_t i = 0; i < 6; ++i) {
    EXPECT_EQ(world_.Acquire(std::span(keys_).subspan(i, 1)).pins.size(), i == 2 ? 0u : 1u) << "block " << i;
  }
}

}  // namespace
}  // namespace kvmesh
