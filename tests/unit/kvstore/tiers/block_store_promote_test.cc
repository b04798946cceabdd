// Acquire: promotion in chain order, its bounds, and copies that turn out wrong.
#include <gtest/gtest.h>

#include <atomic>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "kvstore/tiers/block_store.h"
#include "tests/support/await.h"
#include "tests/unit/kvstore/tiers/store_world.h"

namespace kvmesh {
namespace {

using Blocks = std::array<uint32_t, 3>;  // by set

const RootKey kRoot = TestRoot(1);
const RootKey kOther = TestRoot(2);

// Restarts `world` with `keys` on its disk and nothing in memory.
void PutOnDisk(StoreWorld& world, std::span<const BlockKey> keys) {
  world.PlantOnDisk(kRoot, keys);
  world.Restart();
  ASSERT_EQ(world.Lookup(keys), (Blocks{0, 0, static_cast<uint32_t>(keys.size())}));
}

// Flips a byte of the host's copy of `key` in the pool's memory.
void CorruptHostCopy(StoreWorld& world, std::span<const BlockKey> keys, uint32_t index) {
  const auto pins = world.store->PinForRead(kRoot, keys[index], index, 1, LossyFormats());
  ASSERT_TRUE(pins.ok()) << pins.status();
  ASSERT_EQ(pins->front().tier(), Tier::kHost);
  const std::span<const std::byte> bytes = world.store->BytesInPlace(pins->front());
  const_cast<std::byte*>(bytes.data())[5000] ^= std::byte{1};
}

TEST(BlockStorePromoteTest, EachBlockComesFromTheFastestTierThatHoldsIt) {
  StoreWorld world({.device_slots = 8, .host_slots = 8, .disk_blocks = 100, .max_pinned_fraction = 1});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 6);
  PutOnDisk(world, keys);
  {
    // Blocks 0 to 3 come up; 2 and 3 go down again, to the host.
    EXPECT_EQ(world.Acquire({keys.data(), 4}).found_in, std::vector<Tier>(4, Tier::kDisk));
    const BlockStore::Acquired held = world.Acquire({keys.data(), 2});
    std::vector<PrivateBlock> room;
    for (int i = 0; i < 6; ++i) room.push_back(*world.store->Allocate());
    EXPECT_EQ(world.Lookup(keys), (Blocks{2, 4, 6}));
  }
  const BlockStore::Acquired found = world.Acquire(keys);
  EXPECT_EQ(found.found_in,
            (std::vector<Tier>{Tier::kDevice, Tier::kDevice, Tier::kHost, Tier::kHost, Tier::kDisk, Tier::kDisk}));
  EXPECT_TRUE(world.AllHold(found.pins, keys));
  EXPECT_EQ(world.host->used(), 0u) << "a move frees the slot it came from";
  EXPECT_EQ(world.disk->usage().used_blocks, 6u) << "disk copies stay";
  EXPECT_EQ(world.store->GetBooks().promoted_bytes,
            (std::array<uint64_t, 3>{0, 2u * kTestLayout.block_bytes, 6u * kTestLayout.block_bytes}));
  world.Replay();  // parents before children, or it fails
}

TEST(BlockStorePromoteTest, LongChainComesFromDiskInBatches) {
  StoreWorld world({.device_slots = 100, .disk_blocks = 100, .max_pinned_fraction = 1});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 40);
  PutOnDisk(world, keys);
  const uint64_t batches = world.disk->read_gate.arrivals();
  const BlockStore::Acquired found = world.Acquire(keys);
  EXPECT_EQ(found.pins.size(), 40u);
  EXPECT_TRUE(world.AllHold(found.pins, keys));
  EXPECT_EQ(world.disk->reads(), 40u);
  EXPECT_LE(world.disk->read_gate.arrivals() - batches, 4u);
}

TEST(BlockStorePromoteTest, RunContinuesFromBlocksThatTheCallerHolds) {
  StoreWorld world({.disk_blocks = 100, .max_pinned_fraction = 1});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 6);
  PutOnDisk(world, keys);
  const BlockStore::Acquired head = world.Acquire({keys.data(), 2});
  const BlockStore::Acquired tail = world.Acquire({keys.data() + 2, 4});
  EXPECT_EQ(tail.pins.size(), 4u);
  EXPECT_TRUE(world.AllHold(tail.pins, {keys.data() + 2, 4}));
}

TEST(BlockStorePromoteTest, PinBoundEndsTheRun) {
  StoreWorld world({.device_slots = 8, .host_slots = 8, .disk_blocks = 100});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 6);
  PutOnDisk(world, keys);
  const BlockStore::Acquired found = world.Acquire(keys);
  EXPECT_EQ(found.pins.size(), 4u);
  EXPECT_EQ(found.stopped_by, MissReason::kPinLimit);
  EXPECT_EQ(world.Misses(MissReason::kPinLimit), 1u);
  EXPECT_EQ(world.store->GetBooks().pinned_blocks, 4u);
  EXPECT_EQ(world.Acquire({keys.data(), 4}).pins.size(), 4u) << "another pin of a pinned copy takes no more room";
}

TEST(BlockStorePromoteTest, PoolWithoutVictimsEndsTheRun) {
  StoreWorld world({.device_slots = 4, .disk_blocks = 100});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
  const std::vector<BlockKey> other = TestChain(kOther, 1, 1);
  world.PlantOnDisk(kOther, other);
  PutOnDisk(world, keys);
  // The last block's pin holds its ancestors, so that one pin fills the pool.
  BlockStore::Acquired last;
  for (size_t i = 0; i < 4; ++i) {
    BlockStore::Acquired next = world.Acquire({keys.data() + i, 1});
    ASSERT_EQ(next.pins.size(), 1u) << i;
    last = std::move(next);
  }
  ASSERT_EQ(world.store->GetBooks().pinned_blocks, 1u);
  ASSERT_EQ(world.Lookup(keys)[0], 4u);
  const absl::Status refused = world.store->Allocate().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("all 4 blocks"), absl::string_view::npos) << refused;
  EXPECT_EQ(world.Acquire(other).stopped_by, MissReason::kPoolFull);
  EXPECT_EQ(world.Misses(MissReason::kPoolFull), 1u);
  last = {};
  EXPECT_EQ(world.Acquire(other).pins.size(), 1u);
  world.ExpectBalanced();
}

TEST(BlockStorePromoteTest, DeadlineEndsTheRunBeforeTheNextPromotion) {
  StoreWorld world({.host_slots = 8, .disk_blocks = 100, .max_pinned_fraction = 1});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
  PutOnDisk(world, keys);
  const BlockStore::Acquired first = world.Acquire({keys.data(), 2});
  const BlockStore::Acquired late = world.store->Acquire(keys, LossyFormats(), world.clock.Now());
  EXPECT_EQ(late.pins.size(), 2u) << "what is on the device costs no time";
  EXPECT_EQ(late.stopped_by, MissReason::kDeadline);
  EXPECT_EQ(world.Misses(MissReason::kDeadline), 1u);
  EXPECT_EQ(world.disk->reads(), 2u);
}

TEST(BlockStorePromoteTest, DeadlineEndsTheWaitForAnothersPromotion) {
  StoreWorld world({.disk_blocks = 100});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 1);
  PutOnDisk(world, keys);
  world.disk->read_gate.Close();
  std::thread promoting([&] { EXPECT_EQ(world.Acquire(keys).pins.size(), 1u); });
  ASSERT_TRUE(world.disk->read_gate.AwaitWaiting(1));
  std::atomic<bool> ended = false;
  std::thread waiting([&] {
    const absl::Time deadline = world.clock.Now() + absl::Milliseconds(5);
    const BlockStore::Acquired late = world.store->Acquire(keys, LossyFormats(), deadline);
    EXPECT_TRUE(late.pins.empty());
    EXPECT_EQ(late.stopped_by, MissReason::kDeadline);
    ended = true;
  });
  EXPECT_TRUE(Await(kTestPatience, [&] {
    world.clock.AdvanceTo(world.clock.Now() + absl::Milliseconds(1));
    return ended.load();
  }));
  world.disk->read_gate.Open();
  waiting.join();
  promoting.join();
  EXPECT_EQ(world.disk->reads(), 1u);
}

TEST(BlockStorePromoteTest, ManyReadersOfOneBlockReadTheDiskOnce) {
  constexpr int kReaders = 64;
  for (const bool staged : {false, true}) {
    StoreWorld world({.disk_blocks = 100, .staged_device = staged});
    const std::vector<BlockKey> keys = TestChain(kRoot, 1, 3);
    PutOnDisk(world, keys);
    world.disk->read_gate.Close();
    std::atomic<int> started = 0, complete = 0;
    std::vector<std::thread> readers;
    for (int i = 0; i < kReaders; ++i) {
      readers.emplace_back([&] {
        ++started;
        const BlockStore::Acquired found = world.Acquire(keys);
        complete += found.pins.size() == 3 && world.AllHold(found.pins, keys) ? 1 : 0;
      });
    }
    EXPECT_TRUE(Await(kTestPatience, [&] { return started == kReaders; }));
    EXPECT_TRUE(world.disk->read_gate.AwaitWaiting(1));
    world.disk->read_gate.Open();
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(complete, kReaders);
    EXPECT_EQ(world.disk->reads(), 3u) << "one read per block";
    EXPECT_EQ(world.store->GetBooks().pinned_blocks, 0u);
    world.ExpectBalanced();
  }
}

TEST(BlockStorePromoteTest, PromotionsInFlightCountAgainstThePinBound) {
  StoreWorld world({.device_slots = 4, .host_slots = 8, .staged_device = true});
  std::vector<std::vector<BlockKey>> chains;
  for (uint32_t i = 0; i < 2; ++i) chains.push_back(TestChain(kRoot, i, 1));
  for (const auto& keys : chains) world.SealChain(kRoot, keys);
  world.Churn(kOther, 4);
  world.staged->write_gate.Close();
  std::vector<std::thread> promoting;
  std::vector<BlockStore::Acquired> found(2);
  for (size_t i = 0; i < 2; ++i) {
    promoting.emplace_back([&, i] { found[i] = world.Acquire(chains[i]); });
  }
  EXPECT_TRUE(world.staged->write_gate.AwaitWaiting(2));
  EXPECT_EQ(world.store->Allocate().status().code(), absl::StatusCode::kResourceExhausted);
  world.staged->write_gate.Open();
  for (std::thread& thread : promoting) thread.join();
  EXPECT_EQ(found[0].pins.size() + found[1].pins.size(), 2u);
  EXPECT_EQ(world.store->GetBooks().pinned_blocks, 2u);
  EXPECT_EQ(world.store->GetBooks().private_blocks, 0u);
  found.clear();
  world.ExpectBalanced();
}

// A device of two blocks, both of one chain: its leaf is on the way to a disk that stalls, its parent can't go before.
TEST(BlockStorePromoteTest, ItsDeadlineEndsALoadsWaitForRoomThatAnotherMakes) {
  StoreWorld world({.device_slots = 2, .disk_blocks = 100, .max_pinned_fraction = 1});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 1);
  PutOnDisk(world, keys);
  world.SealChain(kOther, TestChain(kOther, 1, 2));
  world.disk->write_gate.Close();
  std::thread making_room([&] { EXPECT_TRUE(world.store->Allocate().ok()); });
  EXPECT_TRUE(world.disk->write_gate.AwaitWaiting(1));

  const absl::Time deadline = world.clock.Now() + absl::Seconds(5);
  BlockStore::Acquired found;
  std::thread loading([&] { found = world.store->Acquire(keys, LossyFormats(), deadline); });
  EXPECT_TRUE(Await(kTestPatience, [&] { return world.store->GetBooks().private_blocks == 2; }));
  world.clock.AdvanceTo(deadline);
  loading.join();
  EXPECT_TRUE(found.pins.empty());
  EXPECT_EQ(found.stopped_by, MissReason::kDeadline);
  EXPECT_EQ(world.Misses(MissReason::kDeadline), 1u);
  EXPECT_EQ(world.Misses(MissReason::kPoolFull), 0u);
  EXPECT_EQ(world.store->Allocate(deadline).status().code(), absl::StatusCode::kDeadlineExceeded);

  world.disk->write_gate.Open();
  making_room.join();
  EXPECT_EQ(world.Acquire(keys).pins.size(), 1u);
  world.ExpectBalanced();
}

TEST(BlockStorePromoteTest, CorruptHostCopyIsAMissAndCanBeComputedAgain) {
  StoreWorld world({.host_slots = 32});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
  world.SealChain(kRoot, keys);
  world.Churn(kOther, 16);
  ASSERT_EQ(world.Lookup(keys), (Blocks{0, 4, 0}));
  CorruptHostCopy(world, keys, 1);
  BlockStore::Acquired found = world.Acquire(keys);
  EXPECT_EQ(found.pins.size(), 1u);
  EXPECT_EQ(found.stopped_by, MissReason::kCorrupt);
  EXPECT_EQ(world.Misses(MissReason::kCorrupt), 1u);
  EXPECT_EQ(world.Lookup(keys), (Blocks{1, 1, 0})) << "its descendants are unfindable";
  for (uint32_t i = 1; i < 4; ++i) {
    absl::StatusOr<BlockPin> pin = world.SealOne(kRoot, keys, i);
    ASSERT_TRUE(pin.ok()) << pin.status();
    found.pins.push_back(*std::move(pin));
  }
  EXPECT_TRUE(world.AllHold(found.pins, keys));
  found = {};
  EXPECT_EQ(world.Acquire(keys).pins.size(), 4u);
  world.ExpectBalanced();
}

TEST(BlockStorePromoteTest, CorruptHostCopyIsReadFromDiskInstead) {
  StoreWorld world({.host_slots = 32, .disk_blocks = 100});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
  world.SealChain(kRoot, keys);
  world.Churn(kOther, 16);
  world.store->FlushToDisk(absl::InfiniteFuture());
  ASSERT_EQ(world.Lookup(keys), (Blocks{0, 4, 4}));
  CorruptHostCopy(world, keys, 1);
  EXPECT_EQ(world.Acquire(keys).pins.size(), 1u);
  EXPECT_EQ(world.Lookup(keys), (Blocks{1, 1, 4}));
  const BlockStore::Acquired again = world.Acquire(keys);
  EXPECT_EQ(again.pins.size(), 4u);
  EXPECT_TRUE(world.AllHold(again.pins, keys));
}

struct DiskFault {
  std::string name;
  absl::Status status;  // of the read; OK: the bytes are wrong instead
  MissReason reason;
  friend void PrintTo(const DiskFault& fault, std::ostream* out) { *out << fault.name; }
};

class BlockStoreDiskFaultTest : public testing::TestWithParam<DiskFault> {};

TEST_P(BlockStoreDiskFaultTest, FailedReadIsAMissAndCanBeComputedAgain) {
  StoreWorld world({.host_slots = 8, .disk_blocks = 100});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
  PutOnDisk(world, keys);
  if (GetParam().status.ok()) {
    world.disk->Corrupt(keys[2], 100);
  } else {
    world.disk->SetReadFault(
        [&](const BlockHeader& header) { return header.key == keys[2] ? GetParam().status : absl::OkStatus(); });
  }
  BlockStore::Acquired found = world.Acquire(keys);
  EXPECT_EQ(found.pins.size(), 2u);
  EXPECT_EQ(found.stopped_by, GetParam().reason);
  EXPECT_EQ(world.Misses(GetParam().reason), 1u);
  EXPECT_EQ(world.Lookup(keys), (Blocks{2, 2, 2})) << "its descendants are unfindable";
  EXPECT_FALSE(world.disk->Holds(keys[2]));
  EXPECT_FALSE(world.disk->Holds(keys[3]));
  world.disk->SetReadFault(nullptr);
  for (uint32_t i = 2; i < 4; ++i) found.pins.push_back(*world.SealOne(kRoot, keys, i));
  EXPECT_TRUE(world.AllHold(found.pins, keys));
  found = {};
  world.store->FlushToDisk(absl::InfiniteFuture());
  EXPECT_EQ(world.Lookup(keys), (Blocks{4, 4, 4}));
  world.ExpectBalanced();
}

INSTANTIATE_TEST_SUITE_P(Faults, BlockStoreDiskFaultTest,
                         testing::Values(DiskFault{"WrongBytes", absl::OkStatus(), MissReason::kCorrupt},
                                         DiskFault{"DataLoss", absl::DataLossError("torn"), MissReason::kCorrupt},
                                         DiskFault{"IoError", absl::UnavailableError("EIO"), MissReason::kIoError}),
                         [](const auto& info) { return info.param.name; });

TEST(BlockStorePromoteTest, FailingDeviceKeepsTheCopyBelow) {
  StoreWorld world({.host_slots = 32, .disk_blocks = 100, .staged_device = true});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 2);
  PutOnDisk(world, keys);
  world.staged->SetWriteFault([] { return absl::InternalError("device"); });
  const BlockStore::Acquired failed = world.Acquire(keys);
  EXPECT_TRUE(failed.pins.empty());
  EXPECT_EQ(failed.stopped_by, MissReason::kIoError);
  EXPECT_EQ(world.Misses(MissReason::kIoError), 1u);
  EXPECT_EQ(world.Lookup(keys), (Blocks{0, 0, 2}));
  world.staged->SetWriteFault(nullptr);
  EXPECT_EQ(world.Acquire(keys).pins.size(), 2u);
  world.ExpectBalanced();
}

TEST(BlockStorePromoteTest, BlockErasedWhileItIsReadIsAbsent) {
  StoreWorld world({.disk_blocks = 100});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 2);
  PutOnDisk(world, keys);
  world.disk->read_gate.Close();
  BlockStore::Acquired found;
  std::thread promoting([&] { found = world.Acquire(keys); });
  EXPECT_TRUE(world.disk->read_gate.AwaitWaiting(1));
  EXPECT_EQ(world.store->EraseIdentity(kRoot), 2u);
  EXPECT_EQ(world.disk->usage().used_blocks, 2u) << "not while it is read";
  world.disk->read_gate.Open();
  promoting.join();
  EXPECT_TRUE(found.pins.empty());
  EXPECT_EQ(found.stopped_by, MissReason::kAbsent);
  EXPECT_EQ(world.disk->usage().used_blocks, 0u);
  world.ExpectBalanced();
}

TEST(BlockStorePromoteTest, BlockSealedWhileItIsReadIsSharedByBoth) {
  StoreWorld world({.disk_blocks = 100});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 1);
  PutOnDisk(world, keys);
  world.disk->read_gate.Close();
  BlockStore::Acquired found;
  std::thread promoting([&] { found = world.Acquire(keys); });
  EXPECT_TRUE(world.disk->read_gate.AwaitWaiting(1));
  const absl::StatusOr<BlockPin> sealed = world.SealOne(kRoot, keys, 0);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  world.disk->read_gate.Open();
  promoting.join();
  ASSERT_EQ(found.pins.size(), 1u);
  EXPECT_EQ(found.pins[0].block(), sealed->block());
  EXPECT_EQ(world.device->used(), 1u);
}

}  // namespace
}  // namespace kvmesh
