// Tiers with formats of their own: what a move does to a copy, and who may have it afterwards (contract 8).
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "kvstore/tiers/block_store.h"
#include "tests/unit/kvstore/tiers/format_world.h"

namespace kvmesh {
namespace {

using Blocks = std::array<uint32_t, 3>;  // by set

const RootKey kRoot = TestRoot(1);
const LossyFormats kInt8 = LossyIn({KvFormat::kInt8});

TEST(BlockStoreFormatsTest, Int8HostCopyIsAMissForExactRequestsAlsoOncePromoted) {
  FormatWorld world({.device_slots = 16, .host_slots = 24, .host_format = KvFormat::kInt8});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
  world.SealAll(kRoot, {keys.data(), 3});
  world.PushDown();
  EXPECT_EQ(world.Lookup(keys), (Blocks{0, 0, 0}));
  EXPECT_EQ(world.Lookup(keys, kInt8), (Blocks{0, 3, 0}));
  EXPECT_EQ(world.Acquire(keys).stopped_by, MissReason::kLossy);
  EXPECT_EQ(world.Misses(MissReason::kLossy), 1u);
  {
    const BlockStore::Acquired got = world.Acquire(keys, kInt8);
    ASSERT_EQ(got.pins.size(), 3u);
    EXPECT_EQ(got.found_in, std::vector<Tier>(3, Tier::kHost));
    EXPECT_TRUE(world.AllRight(got.pins, keys, kInt8));
    // The bytes are those of the values that int8 kept.
    const BlockLayout host = world.host->layout();
    std::vector<std::byte> kept(static_cast<size_t>(host.block_bytes)), back(FormatContent(keys[0], world.layout));
    ConvertBlock(world.layout, back, host, kept);
    ConvertBlock(host, kept, world.layout, back);
    const std::span<const std::byte> bytes = world.device->bytes(got.pins[0].block());
    EXPECT_EQ(std::vector<std::byte>(bytes.begin(), bytes.end()), back);
    EXPECT_EQ(got.pins[0].header().lossy_formats, kInt8);

    // A block computed on the int8 prefix has its history.
    ASSERT_TRUE(world.SealNumbers(kRoot, keys, 3, kInt8).ok());
    EXPECT_EQ(world.Lookup(keys), (Blocks{0, 0, 0}));
    EXPECT_EQ(world.Lookup({keys.data() + 3, 1}), (Blocks{0, 0, 0}));
    EXPECT_EQ(world.Lookup(keys, kInt8), (Blocks{4, 4, 0}));
    EXPECT_EQ(world.Acquire(keys).pins.size(), 0u);
  }
  // Computed exactly, block by block, it is exact again; what is not computed yet stays lossy.
  ASSERT_TRUE(world.SealNumbers(kRoot, keys, 0).ok());
  EXPECT_EQ(world.Lookup(keys), (Blocks{1, 1, 0}));
  EXPECT_EQ(world.Acquire(keys).stopped_by, MissReason::kLossy);
  world.SealAll(kRoot, keys);
  EXPECT_EQ(world.Lookup(keys), (Blocks{4, 4, 0}));
  const BlockStore::Acquired exact = world.Acquire(keys);
  EXPECT_EQ(exact.pins.size(), 4u);
  EXPECT_TRUE(world.AllRight(exact.pins, keys, kExact));
  const BlockStore::Books books = world.store->GetBooks();
  EXPECT_EQ(books.lossy_promotions, (std::array<uint64_t, 3>{0, 3, 0}));
  EXPECT_GE(books.lossy_demotions[1], 3u);
  EXPECT_EQ(books.conversions[1][static_cast<size_t>(ConversionDirection::kUp)].blocks, 3u);
  EXPECT_EQ(books.promoted_bytes[1], 3 * static_cast<uint64_t>(world.host->layout().block_bytes));
}

TEST(BlockStoreFormatsTest, Int8DiskCopyIsLossyAfterARestartToo) {
  FormatWorld world({.device_slots = 16, .disk_blocks = 24, .disk_format = KvFormat::kInt8});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
  world.SealAll(kRoot, keys);
  world.store->FlushToDisk(absl::InfiniteFuture());
  EXPECT_EQ(world.Lookup(keys), (Blocks{4, 4, 0})) << "what the device holds is exact";
  EXPECT_EQ(world.Lookup(keys, kInt8), (Blocks{4, 4, 4}));
  world.Restart();
  EXPECT_EQ(world.Lookup(keys), (Blocks{0, 0, 0}));
  EXPECT_EQ(world.Lookup(keys, kInt8), (Blocks{0, 0, 4}));
  EXPECT_EQ(world.Acquire(keys).stopped_by, MissReason::kLossy);
  BlockStore::Acquired got = world.Acquire(keys, kInt8);
  ASSERT_EQ(got.pins.size(), 4u);
  EXPECT_EQ(got.found_in, std::vector<Tier>(4, Tier::kDisk));
  EXPECT_TRUE(world.AllRight(got.pins, keys, kInt8));
  EXPECT_EQ(world.Acquire(keys).pins.size(), 0u) << "promoted, it is as lossy as before";
  got.pins.clear();
  world.SealAll(kRoot, keys);
  EXPECT_EQ(world.Lookup(keys), (Blocks{4, 4, 0}));
  world.ExpectBalanced();
}

TEST(BlockStoreFormatsTest, Bf16BlocksComeBackFromFp32TiersAsTheyWereSealed) {
  FormatWorld world({.device_slots = 8,
                     .host_slots = 4,
                     .disk_blocks = 64,
                     .format = KvFormat::kBf16,
                     .host_format = KvFormat::kF32,
                     .disk_format = KvFormat::kF32});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 4);
  std::vector<BlockHeader> sealed;
  for (const BlockPin& pin : world.SealAll(kRoot, keys)) sealed.push_back(pin.header());
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    if (tier == Tier::kHost) {
      // Room in the host for just these.
      for (uint32_t i = 0; i < 4; ++i) world.SealAll(TestRoot(2), TestChain(TestRoot(2), i, 1));
      world.SealNumbers(TestRoot(2), TestChain(TestRoot(2), 9, 1), 0).IgnoreError();
    } else {
      world.store->FlushToDisk(absl::InfiniteFuture());
      world.Restart();
    }
    const BlockStore::Acquired got = world.Acquire(keys);
    ASSERT_EQ(got.pins.size(), 4u);
    EXPECT_EQ(got.found_in.back(), tier);
    EXPECT_TRUE(world.AllRight(got.pins, keys, kExact));
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(got.pins[i].header(), sealed[i]);
  }
  EXPECT_EQ(world.store->GetBooks().lossy_promotions, (std::array<uint64_t, 3>{}));
}

// The device's copies are lossy, the disk's exact: an exact request is served from the disk, and never lossy.
TEST(BlockStoreFormatsTest, ExactDiskCopyReplacesTheLossyOneThatTheDeviceHas) {
  FormatWorld world({.device_slots = 16, .host_slots = 24, .disk_blocks = 64, .host_format = KvFormat::kInt8});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 3);
  world.SealAll(kRoot, keys);
  world.store->FlushToDisk(absl::InfiniteFuture());
  world.PushDown();
  ASSERT_EQ(world.Lookup(keys), (Blocks{0, 0, 3}));
  BlockStore::Acquired lossy = world.Acquire(keys, kInt8);
  EXPECT_EQ(lossy.found_in, std::vector<Tier>(3, Tier::kHost)) << "the fastest that is accepted";
  ASSERT_EQ(world.Lookup(keys), (Blocks{0, 0, 3}));
  BlockStore::Acquired exact = world.Acquire(keys);
  ASSERT_EQ(exact.pins.size(), 3u);
  EXPECT_EQ(exact.found_in, std::vector<Tier>(3, Tier::kDisk));
  EXPECT_TRUE(world.AllRight(exact.pins, keys, kExact));
  EXPECT_TRUE(world.AllRight(lossy.pins, keys, kInt8)) << "its readers keep the old copy";
  EXPECT_EQ(world.Lookup(keys), (Blocks{3, 3, 3}));
  lossy.pins.clear();
  exact.pins.clear();
  world.ExpectBalanced();
}

TEST(BlockStoreFormatsTest, HistoryOfAnUnacceptedFormatIsNoWayToTheDevice) {
  FormatWorld world({.device_slots = 16,
                     .host_slots = 24,
                     .disk_blocks = 64,
                     .host_format = KvFormat::kInt8,
                     .disk_format = KvFormat::kInt4});
  const LossyFormats int4 = LossyIn({KvFormat::kInt4});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 2);
  world.SealAll(kRoot, keys);
  world.store->FlushToDisk(absl::InfiniteFuture());
  world.PushDown();
  EXPECT_EQ(world.Lookup(keys, kInt8), (Blocks{0, 2, 0}));
  EXPECT_EQ(world.Lookup(keys, int4), (Blocks{0, 0, 2}));
  BlockStore::Acquired four = world.Acquire(keys, int4);
  EXPECT_EQ(four.found_in, std::vector<Tier>(2, Tier::kDisk));
  EXPECT_TRUE(world.AllRight(four.pins, keys, int4));
  EXPECT_EQ(world.Acquire(keys, kInt8).stopped_by, MissReason::kLossy) << "the device holds another history";
  four.pins.clear();
  world.PushDown();
  const BlockStore::Acquired eight = world.Acquire(keys, kInt8);
  EXPECT_EQ(eight.found_in, std::vector<Tier>(2, Tier::kHost));
  EXPECT_TRUE(world.AllRight(eight.pins, keys, kInt8));
}

TEST(BlockStoreFormatsTest, BetterContentTakesThePlaceOfWorseOnDisk) {
  FormatWorld world({.device_slots = 16, .host_slots = 24, .disk_blocks = 64, .host_format = KvFormat::kInt8});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 3);
  world.SealAll(kRoot, keys);
  world.PushDown();
  world.store->FlushToDisk(absl::InfiniteFuture());
  EXPECT_EQ(world.Lookup(keys), (Blocks{0, 0, 0}));
  EXPECT_EQ(world.Lookup(keys, kInt8), (Blocks{0, 3, 3})) << "written from the int8 copies of the host";
  world.SealAll(kRoot, keys);
  world.store->FlushToDisk(absl::InfiniteFuture());
  EXPECT_EQ(world.Lookup(keys), (Blocks{3, 3, 3}));
  world.ExpectBalanced();
  world.Restart();
  const BlockStore::Acquired got = world.Acquire(keys);
  EXPECT_EQ(got.pins.size(), 3u);
  EXPECT_TRUE(world.AllRight(got.pins, keys, kExact));
}

TEST(BlockStoreFormatsTest, ReadersThatTakeBytesAwayGetTheDevicesLayout) {
  FormatWorld world({.device_slots = 16,
                     .host_slots = 2,
                     .disk_blocks = 64,
                     .host_format = KvFormat::kInt8,
                     .disk_format = KvFormat::kInt8});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 3);
  world.SealAll(kRoot, keys);
  world.PushDown();
  EXPECT_EQ(world.store->PinForRead(kRoot, keys[2], 0, 3, kExact).status().code(), absl::StatusCode::kNotFound);
  for (uint32_t i = 0; i < 3; ++i) {
    const auto pins = world.store->PinForRead(kRoot, keys[i], i, 1, kInt8);
    ASSERT_TRUE(pins.ok()) << pins.status();
    const BlockPin& pin = pins->front();
    EXPECT_TRUE(world.store->BytesInPlace(pin).empty());
    std::vector<std::byte> bytes(static_cast<size_t>(world.layout.block_bytes));
    const absl::StatusOr<BlockHeader> header = world.store->Read(pin, bytes);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_TRUE(world.Right(*header, bytes, kInt8));
    EXPECT_EQ(header->lossy_formats, kInt8);
    EXPECT_EQ(header->seal_time, pin.header().seal_time);
  }
}

TEST(BlockStoreFormatsTest, SourcesAreVerifiedBeforeTheyAreConverted) {
  for (const Tier tier : kAllTiers) {
    SCOPED_TRACE(testing::Message() << "tier " << static_cast<int>(tier));
    FormatWorld world({.device_slots = 4,
                       .host_slots = 24,
                       .disk_blocks = 64,
                       .host_format = KvFormat::kInt8,
                       .disk_format = KvFormat::kInt8});
    const std::vector<BlockKey> keys = TestChain(kRoot, 1, 1);
    const BlockId slot = world.SealNumbers(kRoot, keys, 0)->block();
    if (tier == Tier::kDevice) {
      world.device->bytes(slot)[5] ^= std::byte{1};
      world.PushDown();
    } else if (tier == Tier::kHost) {
      world.PushDown();
      world.host->bytes(BlockId(0))[5] ^= std::byte{1};  // the first to come
      EXPECT_EQ(world.Acquire(keys, kInt8).stopped_by, MissReason::kCorrupt);
    } else {
      world.store->FlushToDisk(absl::InfiniteFuture());
      world.Restart();
      world.disk->Corrupt(keys[0], 5);
      EXPECT_EQ(world.Acquire(keys, kInt8).stopped_by, MissReason::kCorrupt);
    }
    EXPECT_EQ(world.Misses(MissReason::kCorrupt), 1u);
    EXPECT_EQ(world.Lookup(keys, kInt8), (Blocks{0, 0, 0}));
    world.ExpectBalanced();
  }
}

TEST(BlockStoreFormatsTest, OtherDimensionsAreRefusedByName) {
  StoreWorld world({.device_slots = 4, .host_slots = 4});
  BlockStore::Options options = world.Options();
  options.disk_layout = CanonicalLayout(KvFormat::kInt8, 2, 2, kTestBlockTokens, 8);
  EXPECT_EQ(BlockStore::Create(options).status().message(), "disk_layout: head_dim: 8, the device has 16");
  const auto host = *MemoryPool::Create(CanonicalLayout(KvFormat::kInt8, 1, 2, kTestBlockTokens, 16), 4);
  options = world.Options();
  options.host = host.get();
  EXPECT_EQ(BlockStore::Create(options).status().message(), "host: layers: 1, the device has 2");
}

}  // namespace
}  // namespace kvmesh
