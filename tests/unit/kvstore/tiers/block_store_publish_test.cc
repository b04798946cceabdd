// What becomes findable, when, and what does not.
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/tiers/block_store.h"
#include "tests/unit/kvstore/tiers/store_world.h"

namespace kvmesh {
namespace {

using Blocks = std::array<uint32_t, 3>;  // by set

const RootKey kRoot = TestRoot(1);

struct RoundTrip {
  std::string name;
  StoreShape shape;
  Tier lowest = Tier::kDevice;
  friend void PrintTo(const RoundTrip& trip, std::ostream* out) { *out << trip.name; }
};

class BlockStoreRoundTripTest : public testing::TestWithParam<RoundTrip> {};

TEST_P(BlockStoreRoundTripTest, SealedBlocksComeBackWithTheirBytes) {
  StoreWorld world(GetParam().shape);
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
  EXPECT_EQ(world.Lookup(keys), (Blocks{0, 0, 0}));
  std::vector<BlockPin> pins = world.SealChain(kRoot, keys);
  EXPECT_TRUE(world.AllHold(pins, keys));
  EXPECT_EQ(world.Lookup(keys)[0], 4u);
  pins.clear();

  BlockStore::Acquired found = world.Acquire(keys);
  EXPECT_EQ(found.pins.size(), 4u);
  EXPECT_EQ(found.found_in, std::vector<Tier>(4, Tier::kDevice));
  found = {};

  // Enough to push the chain out of everything above the lowest tier.
  const RootKey other = TestRoot(2);
  const uint32_t above = GetParam().lowest == Tier::kDisk ? world.device->capacity() + 2 + GetParam().shape.host_slots
                                                          : world.device->capacity();
  world.Churn(other, above);
  found = world.Acquire(keys);
  if (GetParam().lowest == Tier::kDevice) {
    EXPECT_TRUE(found.pins.empty());
    EXPECT_EQ(found.stopped_by, MissReason::kAbsent);
  } else {
    EXPECT_EQ(found.found_in, std::vector<Tier>(4, GetParam().lowest));
    EXPECT_TRUE(world.AllHold(found.pins, keys));
    EXPECT_EQ(world.store->GetBooks().promoted_bytes[static_cast<size_t>(GetParam().lowest)],
              4u * kTestLayout.block_bytes);
    EXPECT_EQ(world.Lookup(keys)[0], 4u);
  }
  found = {};
  world.ExpectBalanced();
}

INSTANTIATE_TEST_SUITE_P(
    Tiers, BlockStoreRoundTripTest,
    testing::Values(RoundTrip{"Device", {}, Tier::kDevice}, RoundTrip{"DeviceHost", {.host_slots = 32}, Tier::kHost},
                    RoundTrip{"DeviceHostDisk", {.host_slots = 8, .disk_blocks = 100}, Tier::kDisk},
                    RoundTrip{"DeviceDisk", {.disk_blocks = 100}, Tier::kDisk},
                    RoundTrip{"StagedHost", {.host_slots = 32, .staged_device = true}, Tier::kHost},
                    RoundTrip{
                        "StagedHostDisk", {.host_slots = 8, .disk_blocks = 100, .staged_device = true}, Tier::kDisk},
                    RoundTrip{"StagedDisk", {.disk_blocks = 100, .staged_device = true}, Tier::kDisk}),
    [](const auto& info) { return info.param.name; });

class BlockStorePublishTest : public testing::Test {
 protected:
  // A filled private block and the header that another store sealed it with.
  struct Incoming {
    PrivateBlock block;
    BlockHeader header;
  };
  Incoming Receive(uint32_t index) {
    StoreWorld sender({});
    std::vector<BlockPin> pins = sender.SealChain(kRoot, {keys_.data(), index + 1});
    Incoming in{*world_.store->Allocate(), pins.back().header()};
    world_.Fill(in.block, keys_[index]);
    return in;
  }

  StoreWorld world_{{.host_slots = 8, .disk_blocks = 100}};
  const std::vector<BlockKey> keys_ = TestChain(kRoot, 1, 4);
};

TEST_F(BlockStorePublishTest, PublishedCopyKeepsItsHeader) {
  Incoming first = Receive(0);
  const absl::StatusOr<BlockPin> pin = world_.store->Publish(std::move(first.block), first.header);
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_FALSE(first.block);
  EXPECT_EQ(pin->header(), first.header);
  EXPECT_EQ(pin->tier(), Tier::kDevice);
  Incoming second = Receive(1);
  EXPECT_TRUE(world_.store->Publish(std::move(second.block), second.header).ok());
  EXPECT_EQ(world_.Lookup(keys_), (Blocks{2, 2, 0}));
}

TEST_F(BlockStorePublishTest, WrongBytesOrHeaderAreNeverFindable) {
  const std::vector<std::function<void(BlockHeader&)>> changes = {
      [](BlockHeader& h) { h.checksum ^= 1; },
      [](BlockHeader& h) { h.key.bytes[0] ^= 1; },
      [](BlockHeader& h) { h.lossy_formats = LossyFormats(8); },
      [](BlockHeader& h) { h.seal_time += absl::Microseconds(1); },
      [](BlockHeader& h) { h.layout.bytes[0] ^= 1; },
      [](BlockHeader& h) { h.payload_bytes -= 1; },
      [](BlockHeader& h) { h.start_position += 1; },
      [](BlockHeader& h) { h.start_position += uint64_t{kTestBlockTokens} << 32; },
      [](BlockHeader& h) { h.format = KvFormat::kF16; },
      [](BlockHeader& h) { h.shard.first_layer = 2; },
      [](BlockHeader& h) { h.group = 1; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    for (const bool sealed_so : {false, true}) {
      SCOPED_TRACE(testing::Message() << "change " << i << ", sealed so: " << sealed_so);
      Incoming in = Receive(0);
      changes[i](in.header);
      const bool changes_layout = i >= 4;
      if (sealed_so && !changes_layout) continue;
      std::vector<std::byte> payload(static_cast<size_t>(kTestLayout.block_bytes));
      FillBlock(keys_[0], payload);
      if (sealed_so) in.header.checksum = ComputeChecksum(in.header, payload);
      const uint64_t misses = world_.Misses(MissReason::kCorrupt);
      EXPECT_EQ(world_.store->Publish(std::move(in.block), in.header).status().code(), absl::StatusCode::kDataLoss);
      EXPECT_EQ(world_.Misses(MissReason::kCorrupt), misses + 1);
      EXPECT_EQ(world_.Lookup(keys_), (Blocks{0, 0, 0}));
      EXPECT_EQ(world_.store->events().last(), 0u);
      EXPECT_TRUE(in.block) << "it stays the caller's";
    }
  }
  Incoming in = Receive(0);
  world_.Fill(in.block, keys_[1]);
  EXPECT_EQ(world_.store->Publish(std::move(in.block), in.header).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(world_.Lookup(keys_), (Blocks{0, 0, 0}));
}

TEST_F(BlockStorePublishTest, SealOfAHeldKeyPinsTheHeldCopy) {
  std::vector<BlockPin> pins = world_.SealChain(kRoot, keys_);
  const uint64_t events = world_.store->events().last();
  const absl::StatusOr<BlockPin> again = world_.SealOne(kRoot, keys_, 3);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->block(), pins[3].block());
  EXPECT_EQ(world_.device->used(), 4u);
  EXPECT_EQ(world_.store->GetBooks().pinned_blocks, 4u);
  EXPECT_EQ(world_.store->GetBooks().private_blocks, 0u);
  EXPECT_EQ(world_.store->events().last(), events);
}

TEST_F(BlockStorePublishTest, SealOfAKeyOnTheHostReplacesTheHostCopy) {
  world_.SealChain(kRoot, {keys_.data(), 1});
  world_.Churn(TestRoot(2), 16);
  EXPECT_EQ(world_.Lookup({keys_.data(), 1}), (Blocks{0, 1, 0}));
  const uint32_t host_used = world_.host->used();
  const absl::StatusOr<BlockPin> pin = world_.SealOne(kRoot, keys_, 0);
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_EQ(world_.Lookup({keys_.data(), 1}), (Blocks{1, 1, 0}));
  EXPECT_EQ(world_.host->used(), host_used) << "one churned block came, this one left";
}

TEST_F(BlockStorePublishTest, SealNeedsItsParentOnTheDevice) {
  absl::StatusOr<PrivateBlock> block = world_.store->Allocate();
  ASSERT_TRUE(block.ok());
  world_.Fill(*block, keys_[1]);
  const BlockStore::SealInfo info = StoreWorld::InfoAt(kRoot, keys_, 1);
  EXPECT_EQ(world_.store->Seal(*std::move(block), info).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(*block) << "it stays the caller's";
  EXPECT_EQ(world_.store->GetBooks().private_blocks, 1u);
  const std::vector<BlockPin> parent = world_.SealChain(kRoot, {keys_.data(), 1});
  EXPECT_TRUE(world_.store->Seal(*std::move(block), info).ok()) << "once the parent is there";
  EXPECT_EQ(world_.Lookup(keys_), (Blocks{2, 2, 0}));
}

TEST_F(BlockStorePublishTest, SealUnderAParentErasedWhilePinnedIsRefused) {
  std::vector<BlockPin> pins = world_.SealChain(kRoot, {keys_.data(), 2});
  EXPECT_EQ(world_.store->EraseIdentity(kRoot), 2u);
  EXPECT_EQ(world_.SealOne(kRoot, keys_, 2).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(world_.Lookup(keys_), (Blocks{0, 0, 0}));
  EXPECT_TRUE(world_.AllHold(pins, keys_));
}

TEST_F(BlockStorePublishTest, SealUnderAnotherPlaceIsRefused) {
  const std::vector<BlockPin> pins = world_.SealChain(kRoot, {keys_.data(), 3});
  const std::vector<BlockKey> moved = {keys_[0], keys_[2]};
  EXPECT_EQ(world_.SealOne(kRoot, moved, 1).status().code(), absl::StatusCode::kInvalidArgument);
  const std::vector<BlockKey> first = {keys_[1]};
  EXPECT_EQ(world_.SealOne(kRoot, first, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(world_.SealOne(TestRoot(2), keys_, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(world_.Lookup(keys_), (Blocks{3, 3, 0}));
}

TEST_F(BlockStorePublishTest, LossyCopiesAreHitsOnlyWhereAccepted) {
  const LossyFormats lossy(1u << 5), other(1u << 6);
  std::vector<BlockPin> pins = world_.SealChain(kRoot, {keys_.data(), 1});
  pins.push_back(*world_.SealOne(kRoot, keys_, 1, lossy));
  pins.push_back(*world_.SealOne(kRoot, keys_, 2, lossy));
  EXPECT_EQ(world_.Lookup(keys_), (Blocks{1, 1, 0}));
  EXPECT_EQ(world_.Lookup(keys_, other), (Blocks{1, 1, 0}));
  EXPECT_EQ(world_.Lookup(keys_, lossy.Union(other)), (Blocks{3, 3, 0}));
  BlockStore::Acquired exact = world_.Acquire(keys_);
  EXPECT_EQ(exact.pins.size(), 1u);
  EXPECT_EQ(exact.stopped_by, MissReason::kLossy);
  EXPECT_EQ(world_.Misses(MissReason::kLossy), 1u);
  EXPECT_EQ(world_.Acquire(keys_, lossy).pins.size(), 3u);
}

TEST_F(BlockStorePublishTest, ExactCopyReplacesALossyOneForNewReaders) {
  const LossyFormats lossy(1u << 5);
  std::vector<BlockPin> old = world_.SealChain(kRoot, keys_, lossy);
  const absl::StatusOr<BlockPin> exact = world_.SealOne(kRoot, keys_, 0);
  ASSERT_TRUE(exact.ok()) << exact.status();
  EXPECT_TRUE(exact->header().lossy_formats.exact());
  EXPECT_NE(exact->block(), old[0].block());
  EXPECT_EQ(world_.Lookup(keys_), (Blocks{1, 1, 0}));
  EXPECT_EQ(world_.Lookup(keys_, lossy), (Blocks{4, 4, 0})) << "what stands below it stays";
  EXPECT_TRUE(world_.AllHold(old, keys_)) << "pinned readers keep theirs";
  EXPECT_EQ(world_.device->used(), 5u);
  old.clear();
  EXPECT_EQ(world_.device->used(), 4u);
  EXPECT_EQ(world_.Replay().Digest(BlockSetKind::kDevice), world_.store->GetBooks().digests[0]);
}

TEST_F(BlockStorePublishTest, LossyCopyStaysWhenTheExactOneIsRefused) {
  const LossyFormats lossy(1u << 5);
  world_.SealChain(kRoot, keys_, lossy);
  world_.Churn(TestRoot(2), 16);
  ASSERT_EQ(world_.Lookup(keys_, lossy), (Blocks{0, 4, 0}));
  EXPECT_EQ(world_.SealOne(kRoot, keys_, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(world_.Lookup(keys_, lossy)[1], 4u);
}

TEST_F(BlockStorePublishTest, LossySealOfAnExactBlockPinsTheExactCopy) {
  const std::vector<BlockPin> held = world_.SealChain(kRoot, {keys_.data(), 1});
  const absl::StatusOr<BlockPin> pin = world_.SealOne(kRoot, keys_, 0, LossyFormats(1u << 5));
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_EQ(pin->block(), held[0].block());
}

TEST_F(BlockStorePublishTest, CopyOfAnUnrelatedHistoryIsNotHandedOut) {
  const std::vector<BlockPin> held = world_.SealChain(kRoot, {keys_.data(), 1}, LossyFormats(1u << 5));
  EXPECT_EQ(world_.SealOne(kRoot, keys_, 0, LossyFormats(1u << 6)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(world_.Lookup(keys_, LossyFormats(1u << 5)), (Blocks{1, 1, 0}));
}

TEST_F(BlockStorePublishTest, PinnedAndPrivateBlocksAreBounded) {
  std::vector<PrivateBlock> blocks;
  std::vector<BlockPin> pins = world_.SealChain(kRoot, keys_);
  for (int i = 0; i < 4; ++i) blocks.push_back(*world_.store->Allocate());
  const absl::Status refused = world_.store->Allocate().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("limit of 8"), absl::string_view::npos) << refused;
  blocks.pop_back();
  EXPECT_TRUE(world_.store->Allocate().ok());
  pins.pop_back();
  blocks.push_back(*world_.store->Allocate());
  EXPECT_EQ(world_.store->GetBooks().private_blocks, 4u);
  EXPECT_EQ(world_.store->GetBooks().pinned_blocks, 3u);
}

TEST_F(BlockStorePublishTest, PinsAndPrivateBlocksMove) {
  PrivateBlock block = *world_.store->Allocate();
  PrivateBlock moved = std::move(block);
  EXPECT_FALSE(block);  // NOLINT: what a move leaves is specified
  block = std::move(moved);
  world_.Fill(block, keys_[0]);
  BlockPin pin = *world_.store->Seal(std::move(block), StoreWorld::InfoAt(kRoot, keys_, 0));
  BlockPin second = world_.store->Share(pin);
  BlockPin third = std::move(second);
  EXPECT_FALSE(second);  // NOLINT: as above
  second = world_.store->Share(third);
  pin.Reset();
  second = std::move(third);
  EXPECT_EQ(world_.store->GetBooks().pinned_blocks, 1u);
  second.Reset();
  second.Reset();
  EXPECT_EQ(world_.store->GetBooks().pinned_blocks, 0u);
  world_.ExpectBalanced();
}

TEST(BlockStoreCreateTest, NamesTheWrongOption) {
  StoreWorld world({.host_slots = 4});
  StagedPool staged(kTestLayout, 4);
  const auto host = *MemoryPool::Create(CanonicalLayout(KvFormat::kF32, 1, 1, 4, 4), 4);
  const std::vector<std::pair<std::string, std::function<void(BlockStore::Options&)>>> changes = {
      {"device", [](BlockStore::Options& o) { o.device = nullptr; }},
      {"host", [&](BlockStore::Options& o) { o.host = &staged; }},
      {"host", [&](BlockStore::Options& o) { o.host = host.get(); }},
      {"policy", [](BlockStore::Options& o) { o.policy = nullptr; }},
      {"block_tokens", [](BlockStore::Options& o) { o.block_tokens = 0; }},
      {"max_pinned_fraction", [](BlockStore::Options& o) { o.max_pinned_fraction = 0; }},
      {"max_pinned_fraction", [](BlockStore::Options& o) { o.max_pinned_fraction = 1.1; }},
  };
  for (const auto& [name, change] : changes) {
    BlockStore::Options options = world.Options();
    change(options);
    const absl::Status status = BlockStore::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(status.message().find(name), 0u) << status;
  }
}

TEST(BlockStoreDeathTest, EndingWithSomethingOutstandingAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        StoreWorld world({});
        PrivateBlock block = *world.store->Allocate();
        world.store.reset();
      },
      "private blocks outstanding");
  EXPECT_DEATH(
      {
        StoreWorld world({});
        const std::vector<BlockPin> pins = world.SealChain(kRoot, TestChain(kRoot, 1, 1));
        world.store.reset();
      },
      "ends with pinned copies");
}

TEST(BlockStoreDeathTest, SealingAnEmptyBlockAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  StoreWorld world({});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 1);
  EXPECT_DEATH(world.store->Seal(PrivateBlock(), StoreWorld::InfoAt(kRoot, keys, 0)).IgnoreError(), "private block");
}

}  // namespace
}  // namespace kvmesh
