// Seeded random streams over tiers of all formats: whoever gets a copy gets one that it accepts, copies that say that
// they are exact are so bit for bit, and events, digests, cuts and lookups equal a literal replay.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kvstore/tiers/block_store.h"
#include "tests/unit/kvstore/tiers/cut_checks.h"
#include "tests/unit/kvstore/tiers/format_world.h"

namespace kvmesh {
namespace {

constexpr uint32_t kRoots = 3;
constexpr uint32_t kDeepest = 5;
constexpr int kSteps = 250;

struct Formats {
  std::string name;
  StoreShape shape;
  bool all_exact = false;
  friend void PrintTo(const Formats& formats, std::ostream* out) { *out << formats.name; }
};

// What happened over all seeds, so that a test can tell that rare branches ran.
struct Tally {
  std::atomic<uint64_t> exact_hits = 0;
  std::atomic<uint64_t> lossy_hits = 0;
  std::atomic<uint64_t> lossy_misses = 0;
  std::atomic<uint64_t> exact_seals_over_lossy = 0;
  std::atomic<uint64_t> reads = 0;
  std::atomic<uint64_t> lossy_reads = 0;
  std::atomic<uint64_t> lossy_promotions = 0;

  // Each ran more often than `least`.
  void Expect(bool all_exact, uint64_t least) const {
    EXPECT_GT(exact_hits, least);
    EXPECT_GT(reads, least);
    if (all_exact) {
      EXPECT_EQ(lossy_hits + lossy_misses + lossy_promotions, 0u);
      return;
    }
    EXPECT_GT(lossy_hits, least);
    EXPECT_GT(lossy_misses, least);
    EXPECT_GT(exact_seals_over_lossy, least);
    EXPECT_GT(lossy_reads, least);
    EXPECT_GT(lossy_promotions, least);
  }
};

// Resumes random chains with random wishes, computes what is missing as a sequence does, and reads as a peer does.
class Client {
 public:
  Client(FormatWorld& world, const Formats& formats, Tally& tally, uint32_t seed)
      : world_(world), formats_(formats), tally_(tally), random_(seed) {}

  // One operation; holds no pin afterwards.
  void Step() {
    DrawChain();
    const uint32_t dice = Draw(100);
    if (dice < 2) {
      world_.store->EraseIdentity(root_);
    } else if (dice < 5) {
      world_.store->FlushToDisk(absl::InfiniteFuture());
    } else if (dice < 8) {
      world_.store->AppendDigests();
    } else if (dice < 25) {
      ReadOne();
    } else {
      Resume();
      if (dice >= 75) ComputeTheRest();
    }
    pins_.clear();
  }

  // Of the last step.
  const std::vector<BlockKey>& keys() const { return keys_; }
  LossyFormats accepted() const { return accepted_; }

 private:
  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  void DrawChain() {
    root_ = TestRoot(Draw(kRoots));
    keys_.clear();
    BlockKey parent = RootAsParent(root_);
    for (uint32_t depth = 1 + Draw(kDeepest); depth > 0; --depth) keys_.push_back(parent = TestChild(parent, Draw(2)));
    const std::array<LossyFormats, 4> wishes = {kExact, LossyIn({formats_.shape.host_format}),
                                                LossyIn({formats_.shape.disk_format}),
                                                LossyIn({formats_.shape.host_format, formats_.shape.disk_format})};
    accepted_ = wishes[Draw(4)];
  }

  void Resume() {
    BlockStore::Acquired got = world_.Acquire(keys_, accepted_);
    EXPECT_TRUE(world_.AllRight(got.pins, keys_, accepted_));
    for (const BlockPin& pin : got.pins) ++(pin.header().lossy_formats.exact() ? tally_.exact_hits : tally_.lossy_hits);
    if (got.pins.size() < keys_.size() && got.stopped_by == MissReason::kLossy) ++tally_.lossy_misses;
    pins_ = std::move(got.pins);
  }

  // What it seals has the history of its prefix.
  void ComputeTheRest() {
    LossyFormats history;
    for (const BlockPin& pin : pins_) history = history.Union(pin.header().lossy_formats);
    const uint32_t from = static_cast<uint32_t>(pins_.size());
    for (uint32_t i = from; i < keys_.size(); ++i) {
      const LossyFormats any(~0u);
      const bool held = world_.Lookup({&keys_[i], 1}, any)[0] > 0 && world_.Lookup({&keys_[i], 1})[0] == 0;
      absl::StatusOr<BlockPin> pin = world_.SealNumbers(root_, keys_, i, history);
      if (!pin.ok()) {
        EXPECT_TRUE(absl::IsFailedPrecondition(pin.status()) || absl::IsResourceExhausted(pin.status()))
            << pin.status();
        return;
      }
      if (held && history.exact()) ++tally_.exact_seals_over_lossy;
      pins_.push_back(*std::move(pin));
      EXPECT_TRUE(pins_.back().header().lossy_formats.SubsetOf(history));
    }
    EXPECT_TRUE(world_.AllRight(pins_, keys_, accepted_));
  }

  void ReadOne() {
    const uint32_t index = static_cast<uint32_t>(keys_.size()) - 1;
    const auto pins = world_.store->PinForRead(root_, keys_.back(), index, 1, accepted_);
    if (!pins.ok()) {
      EXPECT_TRUE(absl::IsNotFound(pins.status()) || absl::IsResourceExhausted(pins.status())) << pins.status();
      return;
    }
    std::vector<std::byte> bytes(static_cast<size_t>(world_.layout.block_bytes));
    const absl::StatusOr<BlockHeader> header = world_.store->Read(pins->front(), bytes);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->key, keys_.back());
    EXPECT_TRUE(world_.Right(*header, bytes, accepted_));
    ++tally_.reads;
    if (!header->lossy_formats.exact()) ++tally_.lossy_reads;
    const std::span<const std::byte> in_place = world_.store->BytesInPlace(pins->front());
    if (!in_place.empty()) {
      EXPECT_TRUE(world_.Right(pins->front().header(), in_place, accepted_));
    }
  }

  FormatWorld& world_;
  const Formats& formats_;
  Tally& tally_;
  std::mt19937 random_;
  RootKey root_;
  std::vector<BlockKey> keys_;
  LossyFormats accepted_;
  std::vector<BlockPin> pins_;
};

// Counts before a restart, and at the end.
void NotePromotions(const FormatWorld& world, Tally& tally) {
  for (const uint64_t blocks : world.store->GetBooks().lossy_promotions) tally.lossy_promotions += blocks;
}

// What the store finds is what a reader of its events would.
void ExpectLookupEquals(FormatWorld& world, const SetReplay& replay, const Client& client) {
  const std::array<uint32_t, 3> found = world.Lookup(client.keys(), client.accepted());
  for (const BlockSetKind kind : kAllSets) {
    const SetReplay::Set& set = replay.set(kind);
    uint32_t expected = 0;
    for (const BlockKey& key : client.keys()) {
      if (!set.contains(key) || !set.at(key).lossy_formats.SubsetOf(client.accepted())) break;
      ++expected;
    }
    EXPECT_EQ(found[static_cast<size_t>(kind)], expected) << "set " << static_cast<int>(kind);
  }
}

class BlockStoreFormatsRandomTest : public testing::TestWithParam<Formats> {};

TEST_P(BlockStoreFormatsRandomTest, NothingLossyPassesForExact) {
  Tally tally;
  for (uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    FormatWorld world(GetParam().shape);
    Client client(world, GetParam(), tally, seed);
    SetReplay replay;
    for (int step = 0; step < kSteps; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      client.Step();
      CatchUp(*world.store, world.store->events().last(), replay);
      ExpectLookupEquals(world, replay, client);
      if (step % 10 == 0) ExpectCutEquals(world.store->TakeCut(), replay);
      if (step == kSteps / 2 && world.disk != nullptr) {
        NotePromotions(world, tally);
        world.Restart();
        replay = SetReplay();
      }
      if (HasFailure()) return;
    }
    NotePromotions(world, tally);
    world.ExpectBalanced();
    EXPECT_EQ(world.Misses(MissReason::kCorrupt), 0u);
    for (uint32_t i = 0; i < kRoots; ++i) world.store->EraseIdentity(TestRoot(i));
    EXPECT_EQ(world.device->used(), 0u);
    if (HasFailure()) return;
  }
  tally.Expect(GetParam().all_exact, 10);
}

TEST_P(BlockStoreFormatsRandomTest, NothingLossyPassesForExactAmongManyThreads) {
  constexpr int kThreads = 4;
  Tally tally;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    StoreShape shape = GetParam().shape;
    shape.device_slots = 24;  // each thread pins a chain
    FormatWorld world(shape);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        SCOPED_TRACE(testing::Message() << "thread " << t << ", seed " << seed);
        Client client(world, GetParam(), tally, seed * 100 + t);
        for (int step = 0; step < 2 * kSteps && !HasFailure(); ++step) client.Step();
      });
    }
    for (std::thread& thread : threads) thread.join();
    NotePromotions(world, tally);
    world.ExpectBalanced();
    EXPECT_EQ(world.Misses(MissReason::kCorrupt), 0u);
    if (HasFailure()) return;
  }
  tally.Expect(GetParam().all_exact, 0);  // how often is up to the scheduler
}

INSTANTIATE_TEST_SUITE_P(
    Formats, BlockStoreFormatsRandomTest,
    testing::Values(Formats{"Int8Host", {.device_slots = 12, .host_slots = 12, .host_format = KvFormat::kInt8}},
                    Formats{"Int8Disk", {.device_slots = 12, .disk_blocks = 24, .disk_format = KvFormat::kInt8}},
                    Formats{"Int8HostInt4Disk",
                            {.device_slots = 12,
                             .host_slots = 8,
                             .disk_blocks = 24,
                             .host_format = KvFormat::kInt8,
                             .disk_format = KvFormat::kInt4}},
                    Formats{"Fp8HostDiskAsTheDevice",
                            {.device_slots = 12,
                             .host_slots = 8,
                             .disk_blocks = 24,
                             .format = KvFormat::kF16,
                             .host_format = KvFormat::kFp8E4m3,
                             .disk_format = KvFormat::kF16}},
                    Formats{"Bf16WithFp32HostAndInt8Disk",
                            {.device_slots = 12,
                             .host_slots = 8,
                             .disk_blocks = 24,
                             .format = KvFormat::kBf16,
                             .host_format = KvFormat::kF32,
                             .disk_format = KvFormat::kInt8}},
                    Formats{"StagedInt8HostAndDisk",
                            {.device_slots = 12,
                             .host_slots = 8,
                             .disk_blocks = 24,
                             .staged_device = true,
                             .host_format = KvFormat::kInt8,
                             .disk_format = KvFormat::kInt8}},
                    Formats{"Bf16WithFp32Everywhere",
                            {.device_slots = 12,
                             .host_slots = 8,
                             .disk_blocks = 24,
                             .format = KvFormat::kBf16,
                             .host_format = KvFormat::kF32,
                             .disk_format = KvFormat::kF32},
                            true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvmesh
