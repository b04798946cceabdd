// The event log tells the sets, exactly and in order, and a cut stands at its place in it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "kvstore/tiers/block_store.h"
#include "tests/unit/kvstore/tiers/cut_checks.h"
#include "tests/unit/kvstore/tiers/store_world.h"

namespace kvmesh {
namespace {

const RootKey kRoot = TestRoot(1);

// One random change at a time: resume and seal on a random path, erase an identity, flush, append digests.
class RandomWork {
 public:
  RandomWork(StoreWorld& world, uint32_t seed) : world_(world), random_(seed) {}

  void Step() {
    const RootKey root = TestRoot(Draw(3));
    switch (Draw(40)) {
      case 0:
        world_.store->EraseIdentity(root);
        return;
      case 1:
        world_.store->FlushToDisk(absl::InfiniteFuture());
        return;
      case 2:
        world_.store->AppendDigests();
        return;
      default:
        break;
    }
    std::vector<BlockKey> keys;
    BlockKey parent = RootAsParent(root);
    for (uint32_t depth = 1 + Draw(5); depth > 0; --depth) keys.push_back(parent = TestChild(parent, Draw(2)));
    BlockStore::Acquired found = world_.Acquire(keys);
    EXPECT_TRUE(world_.AllHold(found.pins, keys));
    while (found.pins.size() < keys.size()) {
      absl::StatusOr<BlockPin> pin = world_.SealOne(root, keys, static_cast<uint32_t>(found.pins.size()));
      if (!pin.ok()) break;
      found.pins.push_back(*std::move(pin));
    }
  }

 private:
  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  StoreWorld& world_;
  std::mt19937 random_;
};

TEST(BlockStoreEventsTest, EventsAreContiguousAndEqualTheSets) {
  uint64_t corrupt = 0, io_errors = 0, disk_evictions = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    StoreWorld world({.device_slots = 12, .host_slots = 8, .disk_blocks = 24});
    std::mt19937 random(seed);
    world.disk->SetReadFault(
        [&](const BlockHeader&) { return random() % 20 == 0 ? absl::DataLossError("torn") : absl::OkStatus(); });
    world.disk->SetWriteFault(
        [&](const BlockHeader&) { return random() % 20 == 0 ? absl::UnavailableError("EIO") : absl::OkStatus(); });
    RandomWork work(world, seed);
    SetReplay replay;
    for (int step = 0; step < 200; ++step) {
      work.Step();
      CatchUp(*world.store, world.store->events().last(), replay);
      if (step % 10 == 0) ExpectCutEquals(world.store->TakeCut(), replay);
      if (HasFailure()) return;
    }
    world.ExpectBalanced();
    corrupt += world.Misses(MissReason::kCorrupt);
    io_errors += world.Misses(MissReason::kIoError);
    disk_evictions += world.store->GetBooks().evictions[2];
  }
  EXPECT_GT(corrupt, 20u);
  EXPECT_GT(io_errors, 20u);
  EXPECT_GT(disk_evictions, 20u);
}

TEST(BlockStoreEventsTest, CutIsConsistentWhileTheSetsChange) {
  constexpr int kWriters = 3, kCuts = 40;
  StoreWorld world({.device_slots = 24, .host_slots = 8, .disk_blocks = 24});
  std::atomic<bool> stop = false;
  std::vector<std::thread> writers;
  for (int t = 0; t < kWriters; ++t) {
    writers.emplace_back([&, t] {
      RandomWork work(world, static_cast<uint32_t>(t));
      while (!stop) work.Step();
    });
  }
  SetReplay replay;
  const absl::Time deadline = absl::Now() + kTestPatience;
  int cuts = 0;
  while (cuts < kCuts && absl::Now() < deadline && !HasFailure()) {
    const BlockStore::Cut cut = world.store->TakeCut();
    if (cut.sequence == replay.sequence()) continue;  // nothing changed since the last one
    CatchUp(*world.store, cut.sequence, replay);
    ExpectCutEquals(cut, replay);
    ++cuts;
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(cuts, kCuts);
  CatchUp(*world.store, world.store->events().last(), replay);
  for (const BlockSetKind set : kAllSets) {
    EXPECT_EQ(world.store->GetBooks().digests[static_cast<size_t>(set)], replay.Digest(set));
  }
}

TEST(BlockStoreEventsTest, DigestEventsTellTheSetsOfTheirMoment) {
  StoreWorld world({.device_slots = 8, .disk_blocks = 8});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 3);
  world.SealChain(kRoot, keys);
  world.store->AppendDigests();
  const auto events = world.store->events().ReadAfter(6, 10);
  ASSERT_TRUE(events.ok());
  ASSERT_EQ(events->size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*events)[i].kind, StoreEvent::Kind::kDigest);
    EXPECT_EQ((*events)[i].set, kAllSets[i]);
    EXPECT_EQ((*events)[i].digest.count(), i < 2 ? 3u : 0u);
  }
  world.Replay();  // compares the digests with what it applied
}

TEST(BlockStoreEventsTest, RecoveredBlocksAreToldLikeStoredOnes) {
  StoreWorld world({.disk_blocks = 8});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 3);
  world.PlantOnDisk(kRoot, keys);
  world.Restart();
  const SetReplay replay = world.Replay();
  EXPECT_EQ(replay.sequence(), 3u);
  EXPECT_EQ(replay.set(BlockSetKind::kDisk).size(), 3u);
}

TEST(BlockStoreEventsTest, OverflowIsToldAndACutResumes) {
  StoreWorld world({.device_slots = 64, .event_capacity = 8});
  for (uint32_t i = 0; i < 10; ++i) world.SealChain(kRoot, TestChain(kRoot, i, 1));
  EXPECT_EQ(world.store->events().ReadAfter(0, 100).status().code(), absl::StatusCode::kOutOfRange);
  const BlockStore::Cut cut = world.store->TakeCut();
  EXPECT_EQ(cut.sequence, 20u);
  EXPECT_EQ(cut.blocks.size(), 10u);
  world.SealChain(kRoot, TestChain(kRoot, 10, 1));
  const auto later = world.store->events().ReadAfter(cut.sequence, 100);
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(later->size(), 2u);
}

}  // namespace
}  // namespace kvmesh
