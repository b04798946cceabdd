// Seeded random streams over tiers of all formats: whoever gets a copy gets one that it accepts, copies that say that
// they are exact are so bit for bit, and events, digests, cuts and lookups equal a literal replay.
#include <gtest/gtest.h>

#include <array>
#include <ostream>
#include <random>
#include <string>
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
  uint64_t exact_hits = 0;
  uint64_t lossy_hits = 0;
  uint64_t lossy_misses = 0;
  uint64_t exact_seals_over_lossy = 0;
  uint64_t reads = 0;
  uint64_t lossy_reads = 0;
  uint64_t lossy_promotions = 0;
};

class RandomFormats {
 public:
  RandomFormats(const Formats& formats, Tally& tally, uint32_t seed)
      : formats_(formats), tally_(tally), random_(seed), world_(formats.shape) {}

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
    } else if (dice < 75) {
      Resume();
    } else {
      Resume();
      ComputeTheRest();
    }
    pins_.clear();
    CatchUp(*world_.store, world_.store->events().last(), replay_);
    CompareLookups();
  }
  void Check() { ExpectCutEquals(world_.store->TakeCut(), replay_); }
  // Memory is lost, the disk remains.
  void Restart() {
    Note();
    world_.Restart();
    replay_ = SetReplay();
  }
  void Finish() {
    Note();
    world_.ExpectBalanced();
    EXPECT_EQ(world_.Misses(MissReason::kCorrupt), 0u);
    for (uint32_t i = 0; i < kRoots; ++i) world_.store->EraseIdentity(TestRoot(i));
    EXPECT_EQ(world_.device->used(), 0u);
  }

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

  // As a sequence does: what it seals has the history of its prefix.
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

  void CompareLookups() {
    const std::array<uint32_t, 3> found = world_.Lookup(keys_, accepted_);
    for (const BlockSetKind kind : kAllSets) {
      const SetReplay::Set& set = replay_.set(kind);
      uint32_t expected = 0;
      while (expected < keys_.size() && set.contains(keys_[expected]) &&
             set.at(keys_[expected]).lossy_formats.SubsetOf(accepted_)) {
        ++expected;
      }
      EXPECT_EQ(found[static_cast<size_t>(kind)], expected) << "set " << static_cast<int>(kind);
      if (!formats_.all_exact) continue;
      for (const auto& [key, member] : set) EXPECT_TRUE(member.lossy_formats.exact());
    }
  }
  void Note() {
    for (const uint64_t blocks : world_.store->GetBooks().lossy_promotions) tally_.lossy_promotions += blocks;
  }

  const Formats& formats_;
  Tally& tally_;
  std::mt19937 random_;
  FormatWorld world_;
  SetReplay replay_;
  RootKey root_;
  std::vector<BlockKey> keys_;
  LossyFormats accepted_;
  std::vector<BlockPin> pins_;
};

class BlockStoreFormatsRandomTest : public testing::TestWithParam<Formats> {};

TEST_P(BlockStoreFormatsRandomTest, NothingLossyPassesForExact) {
  Tally tally;
  for (uint32_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomFormats stream(GetParam(), tally, seed);
    for (int step = 0; step < kSteps; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      stream.Step();
      if (step % 10 == 0) stream.Check();
      if (step == kSteps / 2 && GetParam().shape.disk_blocks > 0) stream.Restart();
      if (HasFailure()) return;
    }
    stream.Finish();
    if (HasFailure()) return;
  }
  EXPECT_GT(tally.exact_hits, 500u);
  EXPECT_GT(tally.reads, 20u);
  if (GetParam().all_exact) {
    EXPECT_EQ(tally.lossy_hits + tally.lossy_misses + tally.lossy_promotions, 0u);
    return;
  }
  EXPECT_GT(tally.lossy_hits, 100u);
  EXPECT_GT(tally.lossy_misses, 50u);
  EXPECT_GT(tally.exact_seals_over_lossy, 10u);
  EXPECT_GT(tally.lossy_reads, 20u);
  EXPECT_GT(tally.lossy_promotions, 50u);
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
