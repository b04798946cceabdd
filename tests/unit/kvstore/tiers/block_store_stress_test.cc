// Many threads over small pools: every byte of every pinned block is checked, and the books balance at the end. Meant
// to run under TSan and ASan too.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kvstore/tiers/block_store.h"
#include "tests/support/log_waiter.h"
#include "tests/unit/kvstore/tiers/store_world.h"

namespace kvmesh {
namespace {

constexpr int kThreads = 8;
constexpr int kSteps = 1000;      // of each thread
constexpr uint32_t kRoots = 3;    // identities
constexpr uint32_t kFanOut = 2;   // branches under each block
constexpr uint32_t kDeepest = 6;  // blocks of a chain

// What happened over all threads, so that the test can tell that rare branches ran.
struct Tally {
  std::atomic<uint64_t> sealed = 0;
  std::atomic<uint64_t> found = 0;
  std::atomic<uint64_t> reads = 0;
  std::atomic<uint64_t> erased = 0;
  std::atomic<uint64_t> refused = 0;
};

// A client: resumes random chains, seals what is missing, reads spans as a peer would. Pins of a few steps back are
// kept, and checked again before they go.
class Client {
 public:
  Client(StoreWorld& world, Tally& tally, uint32_t seed)
      : world_(world), tally_(tally), random_(seed), bytes_(static_cast<size_t>(kTestLayout.block_bytes)) {}

  void Step() {
    DrawChain();
    const uint32_t dice = Draw(100);
    if (dice < 70) return Resume();
    if (dice < 90) return ReadSpan();
    if (dice < 93) return LookAround();
    if (dice < 94) return Erase();
    if (dice < 95) return world_.store->FlushToDisk(absl::InfiniteFuture());
    Drop();
  }
  void Drop() {
    EXPECT_TRUE(world_.AllHold(kept_, kept_keys_));
    kept_.clear();
  }

 private:
  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  void DrawChain() {
    root_ = TestRoot(Draw(kRoots));
    keys_.clear();
    BlockKey parent = RootAsParent(root_);
    for (uint32_t depth = 1 + Draw(kDeepest); depth > 0; --depth) {
      keys_.push_back(parent = TestChild(parent, Draw(kFanOut)));
    }
  }

  void Resume() {
    Drop();
    BlockStore::Acquired got = world_.store->Acquire(keys_, LossyFormats(), absl::InfiniteFuture());
    ASSERT_LE(got.pins.size(), keys_.size());
    ASSERT_EQ(got.pins.size(), got.found_in.size());
    EXPECT_TRUE(world_.AllHold(got.pins, keys_));
    tally_.found += got.pins.size();
    while (got.pins.size() < keys_.size()) {
      absl::StatusOr<BlockPin> pin = world_.SealOne(root_, keys_, static_cast<uint32_t>(got.pins.size()));
      if (!pin.ok()) {
        // The bound, a full pool, or a parent erased meanwhile; nothing else.
        EXPECT_TRUE(absl::IsResourceExhausted(pin.status()) || absl::IsFailedPrecondition(pin.status()))
            << pin.status();
        ++tally_.refused;
        break;
      }
      EXPECT_TRUE(*pin);
      got.pins.push_back(*std::move(pin));
      ++tally_.sealed;
    }
    EXPECT_TRUE(world_.AllHold(got.pins, keys_));
    if (Draw(2) == 0) return;
    kept_ = std::move(got.pins);
    kept_keys_ = keys_;
  }

  void ReadSpan() {
    const uint32_t first = Draw(static_cast<uint32_t>(keys_.size()));
    const uint32_t count = static_cast<uint32_t>(keys_.size()) - first;
    const auto pins = world_.store->PinForRead(root_, keys_.back(), first, count, LossyFormats());
    if (!pins.ok()) {
      EXPECT_TRUE(absl::IsNotFound(pins.status()) || absl::IsResourceExhausted(pins.status())) << pins.status();
      return;
    }
    ASSERT_EQ(pins->size(), count);
    for (uint32_t i = 0; i < count; ++i) {
      const BlockPin& pin = (*pins)[i];
      EXPECT_EQ(pin.header().key, keys_[first + i]);
      const absl::Status read = world_.store->Read(pin, bytes_).status();
      if (read.ok()) {
        EXPECT_TRUE(HoldsBlock(keys_[first + i], bytes_));
        ++tally_.reads;
      } else {
        EXPECT_EQ(pin.tier(), Tier::kDisk) << "memory is never wrong here: " << read;
      }
      EXPECT_TRUE(HoldsBlock(keys_[first + i], world_.store->BytesInPlace(pin)));
    }
  }

  void LookAround() {
    const std::array<uint32_t, 3> match = world_.Lookup(keys_);
    EXPECT_LE(match[static_cast<size_t>(BlockSetKind::kDevice)], match[static_cast<size_t>(BlockSetKind::kMemory)]);
    world_.store->AppendDigests();
    EXPECT_LE(world_.store->GetBooks().tiers[0].used, world_.device->capacity());
  }

  void Erase() { tally_.erased += world_.store->EraseIdentity(root_); }

  StoreWorld& world_;
  Tally& tally_;
  std::mt19937 random_;
  std::vector<std::byte> bytes_;
  RootKey root_;
  std::vector<BlockKey> keys_;
  std::vector<BlockPin> kept_;
  std::vector<BlockKey> kept_keys_;
};

// Fails every `every`th operation of a disk.
MemoryDiskTier::Fault EveryNth(uint64_t every, const absl::Status& status) {
  return [every, status, count = uint64_t{0}](const BlockHeader&) mutable {
    return ++count % every == 0 ? status : absl::OkStatus();
  };
}

struct Stress {
  std::string name;
  StoreShape shape;
  friend void PrintTo(const Stress& stress, std::ostream* out) { *out << stress.name; }
};

class BlockStoreStressTest : public testing::TestWithParam<Stress> {};

TEST_P(BlockStoreStressTest, EveryPinnedByteIsRightAndNothingLeaks) {
  Tally tally;
  // Whether clients meet at the bound of pins depends on the scheduler: on until they have.
  for (uint32_t seed = 1; seed <= 2 || (tally.refused == 0 && seed <= 50); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    StoreWorld world(GetParam().shape);
    if (world.disk != nullptr) {
      world.disk->SetReadFault(EveryNth(13, absl::DataLossError("torn")));
      world.disk->SetWriteFault(EveryNth(29, absl::UnavailableError("EIO")));
    }
    std::atomic<bool> done = false;
    SetReplay follower;
    LogWaiter news(world.store->events());
    std::thread following([&] {
      SCOPED_TRACE(testing::Message() << "follower, seed " << seed);
      while (true) {
        const bool last_round = done;
        const auto events = world.store->events().ReadAfter(follower.sequence(), 512);
        ASSERT_TRUE(events.ok()) << events.status();
        for (const StoreEvent& event : *events) follower.Apply(event);
        if (!events->empty()) continue;
        if (last_round) return;
        ASSERT_TRUE(news.AwaitAfter(follower.sequence()));
      }
    });
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        SCOPED_TRACE(testing::Message() << "thread " << t << ", seed " << seed);
        Client client(world, tally, seed * 100 + static_cast<uint32_t>(t));
        for (int i = 0; i < kSteps && !testing::Test::HasFailure(); ++i) client.Step();
        client.Drop();
      });
    }
    for (std::thread& thread : threads) thread.join();
    done = true;
    world.store->AppendDigests();  // wakes the follower
    following.join();

    world.ExpectBalanced();
    for (const BlockSetKind set : kAllSets) {
      EXPECT_EQ(follower.Digest(set), world.store->GetBooks().digests[static_cast<size_t>(set)]);
    }
    const BlockStore::Books books = world.store->GetBooks();
    EXPECT_EQ(world.Misses(MissReason::kCorrupt) > 0, world.disk != nullptr);
    EXPECT_EQ(world.Misses(MissReason::kIoError) > 0, world.disk != nullptr);
    EXPECT_GT(books.evictions[0], 0u);
    EXPECT_EQ(books.promoted_bytes[1] > 0, world.host != nullptr);
    EXPECT_EQ(books.promoted_bytes[2] > 0, world.disk != nullptr);
    EXPECT_EQ(books.demoted_bytes[1] > 0, world.host != nullptr);
    EXPECT_EQ(books.demoted_bytes[2] > 0, world.disk != nullptr);
    for (uint32_t i = 0; i < kRoots; ++i) world.store->EraseIdentity(TestRoot(i));
    EXPECT_EQ(world.device->used(), 0u);
    EXPECT_TRUE(world.host == nullptr || world.host->used() == 0);
    EXPECT_TRUE(world.disk == nullptr || world.disk->usage().used_blocks == 0);
    if (HasFailure()) return;
  }
  EXPECT_GT(tally.sealed, 0u);
  EXPECT_GT(tally.found, 0u);
  EXPECT_GT(tally.reads, 0u);
  EXPECT_GT(tally.refused, 0u);
  EXPECT_GT(tally.erased, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Tiers, BlockStoreStressTest,
    testing::Values(Stress{"Device", {.device_slots = 40}},
                    Stress{"DeviceHost", {.device_slots = 40, .host_slots = 16}},
                    Stress{"DeviceHostDisk", {.device_slots = 40, .host_slots = 16, .disk_blocks = 64}},
                    Stress{"DeviceDisk", {.device_slots = 40, .disk_blocks = 64}},
                    Stress{"TinyTiers",
                           {.device_slots = 12, .host_slots = 2, .disk_blocks = 10, .max_pinned_fraction = 1}},
                    Stress{"Staged", {.device_slots = 40, .host_slots = 16, .disk_blocks = 64, .staged_device = true}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvmesh
