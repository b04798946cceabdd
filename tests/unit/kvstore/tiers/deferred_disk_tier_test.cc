#include "kvstore/tiers/deferred_disk_tier.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/kvstore/tiers/store_world.h"

namespace kvmesh {
namespace {

using Blocks = std::array<uint32_t, 3>;  // by set

class DeferredDiskTierTest : public testing::Test {
 protected:
  DeferredDiskTierTest() : world_({.device_slots = 4, .max_pinned_fraction = 1}) {
    BlockStore::Options options = world_.Options();
    options.disk = &disk_;
    world_.store = *BlockStore::Create(options);
  }
  ~DeferredDiskTierTest() override { world_.store.reset(); }

  // What a good open finds: a disk that holds `keys`.
  void MakeRoom(std::span<const BlockKey> keys = {}) {
    available_ = std::make_unique<MemoryDiskTier>(100);
    std::vector<std::byte> payload(static_cast<size_t>(kTestLayout.block_bytes));
    for (uint32_t i = 0; i < keys.size(); ++i) {
      FillBlock(keys[i], payload);
      available_->Plant(world_.SealedHeader(StoreWorld::InfoAt(root_, keys, i), payload), payload);
    }
  }
  bool OpenWhenDue() {
    world_.clock.AdvanceTo(world_.clock.Now() + DeferredDiskTier::kRetryInterval);
    if (!disk_.TryOpen()) return false;
    world_.store->AdoptRecovered();
    return true;
  }
  Blocks Lookup(std::span<const BlockKey> keys) { return world_.Lookup(keys); }

  const RootKey root_ = TestRoot(1);
  const std::vector<BlockKey> keys_ = TestChain(root_, 1, 3);
  std::unique_ptr<MemoryDiskTier> available_;
  int opens_ = 0;
  StoreWorld world_;
  DeferredDiskTier disk_{[this]() -> absl::StatusOr<std::unique_ptr<DiskTier>> {
                           ++opens_;
                           if (available_ == nullptr) return absl::ResourceExhaustedError("no space");
                           return std::move(available_);
                         },
                         world_.clock};
};

TEST_F(DeferredDiskTierTest, ClosedItIsADiskWithoutRoom) {
  EXPECT_FALSE(disk_.TryOpen());
  world_.SealChain(root_, keys_);
  world_.Churn(TestRoot(2), 4);
  EXPECT_EQ(Lookup(keys_), (Blocks{0, 0, 0}));
  world_.store->FlushToDisk(absl::InfiniteFuture());
  const BlockStore::Books books = world_.store->GetBooks();
  EXPECT_FALSE(books.disk_writable);
  EXPECT_EQ(books.disk_errors, 1u);
  EXPECT_EQ(books.tiers[2].capacity, 0u);
  EXPECT_EQ(world_.Misses(MissReason::kIoError), 0u);
}

TEST_F(DeferredDiskTierTest, OpensAreTriedOncePerInterval) {
  EXPECT_FALSE(disk_.TryOpen());
  EXPECT_FALSE(disk_.TryOpen());
  EXPECT_EQ(opens_, 1);
  EXPECT_FALSE(OpenWhenDue());
  EXPECT_EQ(opens_, 2);
  MakeRoom();
  EXPECT_FALSE(disk_.TryOpen()) << "not due yet";
  EXPECT_TRUE(OpenWhenDue());
  EXPECT_FALSE(OpenWhenDue()) << "it is open";
  EXPECT_EQ(opens_, 3);
}

TEST_F(DeferredDiskTierTest, OpenedItTakesBlocks) {
  EXPECT_FALSE(disk_.TryOpen());
  MakeRoom();
  ASSERT_TRUE(OpenWhenDue());
  world_.SealChain(root_, keys_);
  world_.Churn(TestRoot(2), 4);
  EXPECT_EQ(Lookup(keys_), (Blocks{0, 0, 3}));
  const BlockStore::Acquired found = world_.Acquire({keys_.data(), 2});
  EXPECT_EQ(found.found_in, std::vector<Tier>(2, Tier::kDisk));
  EXPECT_TRUE(world_.AllHold(found.pins, keys_));
  EXPECT_TRUE(world_.store->GetBooks().disk_writable);
  EXPECT_EQ(world_.store->GetBooks().disk_errors, 1u);
}

TEST_F(DeferredDiskTierTest, WhatItRecoveredIsFoundOnceItIsOpen) {
  EXPECT_FALSE(disk_.TryOpen());
  BlockPin held = *world_.SealOne(root_, keys_, 0);
  const uint64_t before = world_.store->events().last();
  MakeRoom(keys_);
  EXPECT_EQ(Lookup(keys_), (Blocks{1, 1, 0}));
  ASSERT_TRUE(OpenWhenDue());
  EXPECT_EQ(Lookup(keys_), (Blocks{1, 1, 3}));
  EXPECT_EQ(world_.store->events().last(), before + 3);
  world_.Replay();  // parents before children, or it fails
  // The bound of pinned blocks is that of the disk as it is now.
  EXPECT_TRUE(world_.store->PinForRead(root_, keys_[2], 0, 3, LossyFormats()).ok());
}

}  // namespace
}  // namespace kvmesh
