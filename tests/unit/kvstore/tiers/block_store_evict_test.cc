// Making room: who goes, where to, and what happens when there is none.
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "kvstore/tiers/block_store.h"
#include "tests/unit/kvstore/tiers/store_world.h"

namespace kvmesh {
namespace {

using Blocks = std::array<uint32_t, 3>;  // by set

const RootKey kRoot = TestRoot(1);
const RootKey kOther = TestRoot(2);

TEST(BlockStoreEvictTest, DeviceAndHostHoldDifferentBlocks) {
  StoreWorld world({.device_slots = 8, .host_slots = 8});
  std::vector<std::vector<BlockKey>> chains;
  for (uint32_t i = 0; i < 4; ++i) {
    chains.push_back(TestChain(kRoot, i, 4));
    world.SealChain(kRoot, chains.back());
  }
  for (const auto& keys : chains) EXPECT_EQ(world.Lookup(keys)[1], 4u);
  EXPECT_EQ(world.device->used(), 8u);
  EXPECT_EQ(world.host->used(), 8u);
  EXPECT_EQ(world.store->GetBooks().evictions, (std::array<uint64_t, 3>{8, 0, 0}));
  world.SealChain(kRoot, TestChain(kRoot, 9, 1));
  EXPECT_EQ(world.Lookup(chains[0])[1], 3u) << "the leaf of the least recently used chain went";
  EXPECT_EQ(world.store->GetBooks().evictions, (std::array<uint64_t, 3>{9, 1, 0}));
  for (uint32_t i = 1; i < 4; ++i) EXPECT_EQ(world.Lookup(chains[i])[1], 4u);
  world.ExpectBalanced();
}

TEST(BlockStoreEvictTest, LeavesOfTheLeastRecentlyUsedChainGoFirst) {
  StoreWorld world({.device_slots = 8});
  const std::vector<BlockKey> one = TestChain(kRoot, 1, 4), two = TestChain(kRoot, 2, 4);
  world.SealChain(kRoot, one);
  world.SealChain(kRoot, two);
  EXPECT_EQ(world.Acquire(one).pins.size(), 4u);  // now the more recent
  world.Churn(kOther, 3);
  EXPECT_EQ(world.Lookup(one)[0], 4u);
  EXPECT_EQ(world.Lookup(two)[0], 1u);
}

TEST(BlockStoreEvictTest, LookupKeepsNothingWarm) {
  StoreWorld world({.device_slots = 8});
  const std::vector<BlockKey> one = TestChain(kRoot, 1, 4), two = TestChain(kRoot, 2, 4);
  world.SealChain(kRoot, one);
  world.SealChain(kRoot, two);
  EXPECT_EQ(world.Lookup(one)[0], 4u);
  world.Churn(kOther, 2);
  EXPECT_EQ(world.Lookup(one)[0], 2u);
  EXPECT_EQ(world.Lookup(two)[0], 4u);
}

TEST(BlockStoreEvictTest, PinnedBlocksAndTheirAncestorsStay) {
  StoreWorld world({.device_slots = 8, .host_slots = 8});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
  std::vector<BlockPin> pins = world.SealChain(kRoot, keys);
  pins.erase(pins.begin(), pins.begin() + 2);
  world.Churn(kOther, 20);
  EXPECT_EQ(world.Lookup(keys)[0], 4u);
  EXPECT_TRUE(world.AllHold(pins, {keys.data() + 2, 2}));
}

TEST(BlockStoreEvictTest, DeviceCopyWhoseBlockIsOnTheHostTooCanGo) {
  StoreWorld world({.device_slots = 4, .host_slots = 8, .max_pinned_fraction = 1});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 1);
  world.SealChain(kRoot, keys);
  world.Churn(kOther, 4);
  ASSERT_EQ(world.Lookup(keys), (Blocks{0, 1, 0}));
  {
    const auto reading = world.store->PinForRead(kRoot, keys[0], 0, 1, LossyFormats());
    ASSERT_TRUE(reading.ok());
    EXPECT_EQ(world.Acquire(keys).pins.size(), 1u);
  }
  ASSERT_EQ(world.Lookup(keys), (Blocks{1, 1, 0}));
  std::vector<PrivateBlock> blocks;
  for (int i = 0; i < 4; ++i) {
    absl::StatusOr<PrivateBlock> block = world.store->Allocate();
    ASSERT_TRUE(block.ok()) << block.status();
    blocks.push_back(*std::move(block));
  }
  EXPECT_EQ(world.Lookup(keys), (Blocks{0, 1, 0}));
  blocks.clear();
  world.ExpectBalanced();
}

TEST(BlockStoreEvictTest, ChainsGoToDiskRootsFirst) {
  StoreWorld world({.device_slots = 8, .disk_blocks = 100});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
  world.SealChain(kRoot, keys);
  std::vector<BlockKey> written;
  world.disk->SetWriteFault([&](const BlockHeader& header) {
    written.push_back(header.key);
    return absl::OkStatus();
  });
  std::vector<PrivateBlock> blocks;
  while (blocks.size() < 4) blocks.push_back(*world.store->Allocate());
  EXPECT_TRUE(written.empty()) << "there was room";
  world.SealChain(kOther, {});
  blocks.clear();
  world.Churn(kOther, 4);
  EXPECT_TRUE(written.empty());
  world.Churn(TestRoot(3), 1);
  EXPECT_EQ(written, keys) << "the leaf left after its ancestors were written";
  EXPECT_EQ(world.Lookup(keys), (Blocks{3, 3, 4}));
  EXPECT_EQ(world.store->GetBooks().demoted_bytes[2], 4u * kTestLayout.block_bytes);
  world.ExpectBalanced();
}

TEST(BlockStoreEvictTest, FullDiskKeepsTheLeadingBlocksOfAChain) {
  StoreWorld world({.device_slots = 16, .disk_blocks = 3});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 6);
  world.SealChain(kRoot, keys);
  world.store->FlushToDisk(absl::InfiniteFuture());
  EXPECT_EQ(world.Lookup(keys), (Blocks{6, 6, 3}));
  EXPECT_EQ(world.disk->usage().used_blocks, 3u);
}

TEST(BlockStoreEvictTest, FullDiskEvictsItsLeastRecentlyUsedLeaves) {
  StoreWorld world({.device_slots = 8, .disk_blocks = 4});
  const std::vector<BlockKey> old = TestChain(kRoot, 1, 4), young = TestChain(kRoot, 2, 2);
  world.SealChain(kRoot, old);
  world.store->FlushToDisk(absl::InfiniteFuture());
  world.SealChain(kRoot, young);
  world.store->FlushToDisk(absl::InfiniteFuture());
  EXPECT_EQ(world.Lookup(old)[2], 2u);
  EXPECT_EQ(world.Lookup(young)[2], 2u);
  EXPECT_EQ(world.store->GetBooks().evictions[2], 2u);
  world.ExpectBalanced();
}

TEST(BlockStoreEvictTest, DiskThatRefusesMeansDropNotFailure) {
  for (const absl::Status& refusal : {absl::ResourceExhaustedError("floor"), absl::UnavailableError("read-only")}) {
    StoreWorld world({.device_slots = 8, .disk_blocks = 100});
    const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
    world.SealChain(kRoot, keys);
    world.disk->SetWriteFault([&](const BlockHeader&) { return refusal; });
    world.Churn(kOther, 8);
    EXPECT_EQ(world.Lookup(keys), (Blocks{0, 0, 0}));
    EXPECT_EQ(world.Misses(MissReason::kIoError) > 0, absl::IsUnavailable(refusal));
    world.disk->SetWriteFault(nullptr);
    world.store->FlushToDisk(absl::InfiniteFuture());
    EXPECT_EQ(world.disk->usage().used_blocks, 8u) << "it works again";
    world.ExpectBalanced();
  }
}

TEST(BlockStoreEvictTest, WritingALongChainToDiskLeavesThePinBoundAlone) {
  StoreWorld world({.device_slots = 8, .disk_blocks = 100});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 6), other = TestChain(kOther, 1, 2);
  BlockPin parent;
  for (uint32_t i = 0; i < keys.size(); ++i) parent = *world.SealOne(kRoot, keys, i);
  parent.Reset();
  world.SealChain(kOther, other);
  world.disk->write_gate.Close();
  std::thread allocating([&] { EXPECT_TRUE(world.store->Allocate().ok()); });
  EXPECT_TRUE(world.disk->write_gate.AwaitWaiting(1));
  EXPECT_EQ(world.Acquire(other).pins.size(), 2u);
  EXPECT_EQ(world.store->GetBooks().pinned_blocks, 0u);
  world.disk->write_gate.Open();
  allocating.join();
  EXPECT_EQ(world.Lookup(keys), (Blocks{5, 5, 6}));
}

TEST(BlockStoreEvictTest, OneBlockIsWrittenToDiskByOneThreadAtATime) {
  StoreWorld world({.device_slots = 16, .disk_blocks = 100});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 8);
  world.SealChain(kRoot, keys);
  world.disk->write_gate.Close();
  std::vector<std::thread> flushing;
  for (int i = 0; i < 4; ++i) flushing.emplace_back([&] { world.store->FlushToDisk(absl::InfiniteFuture()); });
  EXPECT_TRUE(world.disk->write_gate.AwaitWaiting(1));
  world.disk->write_gate.Open();
  for (std::thread& thread : flushing) thread.join();
  EXPECT_EQ(world.Lookup(keys)[2], 8u);
  EXPECT_EQ(world.disk->writes(), 8u);
  world.ExpectBalanced();
}

TEST(BlockStoreEvictTest, VictimPinnedWhileItIsWrittenStays) {
  StoreWorld world({.device_slots = 4, .disk_blocks = 100});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 1);
  world.SealChain(kRoot, keys);
  world.Churn(kOther, 3);
  world.disk->write_gate.Close();
  absl::StatusOr<PrivateBlock> block = absl::UnknownError("");
  std::thread allocating([&] { block = world.store->Allocate(); });
  EXPECT_TRUE(world.disk->write_gate.AwaitWaiting(1));
  const BlockStore::Acquired pinned = world.Acquire(keys);
  world.disk->write_gate.Open();
  allocating.join();
  ASSERT_EQ(pinned.pins.size(), 1u);
  EXPECT_TRUE(block.ok()) << "another victim was found: " << block.status();
  EXPECT_TRUE(world.AllHold(pinned.pins, keys));
  EXPECT_EQ(world.Lookup(keys), (Blocks{1, 1, 1}));
}

TEST(BlockStoreEvictTest, BlockErasedWhileItIsWrittenIsNotOnDisk) {
  StoreWorld world({.device_slots = 8, .disk_blocks = 100});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
  world.SealChain(kRoot, keys);
  world.disk->write_gate.Close();
  std::thread flushing([&] { world.store->FlushToDisk(absl::InfiniteFuture()); });
  EXPECT_TRUE(world.disk->write_gate.AwaitWaiting(1));
  EXPECT_EQ(world.store->EraseIdentity(kRoot), 4u);
  world.disk->write_gate.Open();
  flushing.join();
  EXPECT_EQ(world.disk->usage().used_blocks, 0u);
  EXPECT_EQ(world.device->used(), 0u);
  world.ExpectBalanced();
}

TEST(BlockStoreEvictTest, CorruptDeviceCopyIsLostWhenItIsDemoted) {
  StoreWorld world({.device_slots = 4, .host_slots = 8});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 2);
  {
    const std::vector<BlockPin> pins = world.SealChain(kRoot, keys);
    world.device->bytes(pins[1].block())[0] ^= std::byte{1};
  }
  world.Churn(kOther, 4);
  EXPECT_EQ(world.Lookup(keys), (Blocks{0, 1, 0}));
  EXPECT_EQ(world.Misses(MissReason::kCorrupt), 1u);
  world.ExpectBalanced();
}

TEST(BlockStoreEvictTest, CorruptDeviceCopyIsNotWrittenToDisk) {
  StoreWorld world({.device_slots = 4, .disk_blocks = 100, .max_pinned_fraction = 1});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
  {
    const std::vector<BlockPin> pins = world.SealChain(kRoot, keys);
    world.device->bytes(pins[1].block())[7] ^= std::byte{1};
  }
  world.Churn(kOther, 1);
  EXPECT_EQ(world.Lookup(keys), (Blocks{1, 1, 1}));
  EXPECT_FALSE(world.disk->Holds(keys[1]));
  EXPECT_EQ(world.Misses(MissReason::kCorrupt), 1u);
  world.ExpectBalanced();
}

TEST(BlockStoreEvictTest, WhatIsNotOnDiskByTheDeadlineOfAnAllocationIsDropped) {
  StoreWorld world({.device_slots = 8, .disk_blocks = 100, .max_pinned_fraction = 1});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 8);
  world.SealChain(kRoot, keys);
  const absl::Time deadline = world.clock.Now() + absl::Seconds(1);
  // The deadline comes while the third block is written.
  world.disk->SetWriteFault([&](const BlockHeader& header) {
    if (header.key == keys[2]) world.clock.AdvanceTo(deadline);
    return absl::OkStatus();
  });
  absl::StatusOr<PrivateBlock> block = world.store->Allocate(deadline);
  EXPECT_TRUE(block.ok()) << block.status();
  EXPECT_EQ(world.Lookup(keys), (Blocks{7, 7, 3}));
  EXPECT_EQ(world.store->Allocate(deadline).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(world.Lookup(keys), (Blocks{7, 7, 3}));
  block->Reset();
  world.ExpectBalanced();
}

TEST(BlockStoreFlushTest, FlushedMemorySurvivesARestart) {
  StoreWorld world({.device_slots = 8, .host_slots = 8, .disk_blocks = 100});
  std::vector<std::vector<BlockKey>> chains;
  for (uint32_t i = 0; i < 4; ++i) {
    chains.push_back(TestChain(kRoot, i, 4));
    world.SealChain(kRoot, chains.back());
  }
  world.store->FlushToDisk(world.clock.Now());
  EXPECT_EQ(world.disk->usage().used_blocks, 0u) << "its deadline had passed";
  world.store->FlushToDisk(absl::InfiniteFuture());
  EXPECT_EQ(world.disk->usage().used_blocks, 16u);
  world.Restart();
  for (const auto& keys : chains) {
    EXPECT_EQ(world.Lookup(keys), (Blocks{0, 0, 4}));
    const BlockStore::Acquired found = world.Acquire(keys);
    EXPECT_EQ(found.pins.size(), 4u);
    EXPECT_TRUE(world.AllHold(found.pins, keys));
  }
  world.ExpectBalanced();
}

TEST(BlockStoreRecoveryTest, BlocksWhoseParentDidNotSurviveAreDropped) {
  StoreWorld world({.disk_blocks = 100});
  const std::vector<BlockKey> whole = TestChain(kRoot, 1, 3), broken = TestChain(kRoot, 2, 4),
                              beheaded = TestChain(kOther, 1, 2);
  for (const auto* keys : {&whole, &broken}) world.PlantOnDisk(kRoot, *keys);
  world.PlantOnDisk(kOther, beheaded);
  world.disk->Vanish(broken[1]);
  world.disk->Vanish(beheaded[0]);
  world.Restart();
  EXPECT_EQ(world.Lookup(whole)[2], 3u);
  EXPECT_EQ(world.Lookup(broken)[2], 1u);
  EXPECT_EQ(world.Lookup(beheaded)[2], 0u);
  EXPECT_EQ(world.disk->usage().used_blocks, 4u) << "the rest was erased";
  world.ExpectBalanced();
}

TEST(BlockStoreRecoveryTest, BlocksOfAnotherLayoutOrPlaceAreDropped) {
  const std::vector<std::function<void(BlockHeader&)>> changes = {
      [](BlockHeader& h) { h.layout.bytes[0] ^= 1; },
      [](BlockHeader& h) { h.format = KvFormat::kBf16; },
      [](BlockHeader& h) { h.payload_bytes += 8; },
      [](BlockHeader& h) { h.start_position = 1; },
      [](BlockHeader& h) { h.start_position = kTestBlockTokens; },
      [](BlockHeader& h) { h.start_position = uint64_t{kTestBlockTokens} << 32; },
      [](BlockHeader& h) { h.shard.heads = 1; },
      [](BlockHeader& h) { h.group = 3; },
      [](BlockHeader& h) { h.root = kOther; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "change " << i);
    StoreWorld world({.disk_blocks = 100});
    const std::vector<BlockKey> keys = TestChain(kRoot, 1, 1);
    std::vector<std::byte> payload(static_cast<size_t>(kTestLayout.block_bytes));
    FillBlock(keys[0], payload);
    BlockHeader header = world.SealedHeader(StoreWorld::InfoAt(kRoot, keys, 0), payload);
    changes[i](header);
    header.checksum = ComputeChecksum(header, payload);
    world.disk->Plant(header, payload);
    world.Restart();
    EXPECT_EQ(world.Lookup(keys)[2], 0u);
    EXPECT_EQ(world.disk->usage().used_blocks, 0u);
  }
}

TEST(BlockStoreEraseTest, ErasedIdentityLeavesEveryTierAndNoOtherIdentity) {
  StoreWorld world({.device_slots = 8, .host_slots = 8, .disk_blocks = 100});
  const std::vector<BlockKey> mine = TestChain(kRoot, 1, 3), other = TestChain(kOther, 1, 2);
  world.SealChain(kRoot, mine);
  world.SealChain(kOther, other);
  world.store->FlushToDisk(absl::InfiniteFuture());
  EXPECT_EQ(world.store->EraseIdentity(kRoot), 3u);
  EXPECT_EQ(world.store->EraseIdentity(kRoot), 0u);
  EXPECT_EQ(world.Lookup(mine), (Blocks{0, 0, 0}));
  EXPECT_EQ(world.Lookup(other), (Blocks{2, 2, 2}));
  EXPECT_EQ(world.device->used(), 2u);
  EXPECT_EQ(world.disk->usage().used_blocks, 2u);
  world.ExpectBalanced();
}

TEST(BlockStoreEraseTest, PinnedBlocksOfAnErasedIdentityKeepTheirBytesUntilUnpinned) {
  StoreWorld world({.device_slots = 16, .disk_blocks = 100});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
  std::vector<BlockPin> pins = world.SealChain(kRoot, keys);
  EXPECT_EQ(world.store->EraseIdentity(kRoot), 4u);
  EXPECT_EQ(world.Lookup(keys), (Blocks{0, 0, 0}));
  world.Churn(kOther, 20);
  EXPECT_TRUE(world.AllHold(pins, keys));
  EXPECT_EQ(world.store->GetBooks().pinned_blocks, 4u);
  pins.clear();
  EXPECT_EQ(world.device->used(), 12u);
  world.ExpectBalanced();
}

}  // namespace
}  // namespace kvmesh
