// Readers that take bytes away: pins in any tier, verified copies.
#include <gtest/gtest.h>

#include <vector>

#include "kvstore/tiers/block_store.h"
#include "tests/unit/kvstore/tiers/store_world.h"

namespace kvmesh {
namespace {

using Blocks = std::array<uint32_t, 3>;  // by set

const RootKey kRoot = TestRoot(1);
const RootKey kOther = TestRoot(2);

class BlockStoreReadTest : public testing::TestWithParam<bool> {
 protected:
  // Blocks 0 and 1 stand on the device, 2 and 3 on the host, 4 and 5 on disk.
  BlockStoreReadTest() {
    world_.PlantOnDisk(kRoot, keys_);
    world_.Restart();
    world_.Acquire({keys_.data(), 4});
    const BlockStore::Acquired held = world_.Acquire({keys_.data(), 2});
    std::vector<PrivateBlock> room;
    for (int i = 0; i < 6; ++i) room.push_back(*world_.store->Allocate());
    EXPECT_EQ(world_.Lookup(keys_), (Blocks{2, 4, 6}));
  }

  absl::StatusOr<std::vector<BlockPin>> Pin(uint32_t first, uint32_t count) {
    return world_.store->PinForRead(kRoot, keys_[first + count - 1], first, count, LossyFormats());
  }

  const std::vector<BlockKey> keys_ = TestChain(kRoot, 1, 6);
  std::vector<std::byte> bytes_ = std::vector<std::byte>(static_cast<size_t>(kTestLayout.block_bytes));
  StoreWorld world_{
      {.device_slots = 8, .host_slots = 8, .disk_blocks = 100, .max_pinned_fraction = 1, .staged_device = GetParam()}};
};

INSTANTIATE_TEST_SUITE_P(Devices, BlockStoreReadTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Staged" : "Addressable"; });

TEST_P(BlockStoreReadTest, SpanIsPinnedAndReadWhereItStands) {
  absl::StatusOr<std::vector<BlockPin>> pins = Pin(0, 6);
  ASSERT_TRUE(pins.ok()) << pins.status();
  ASSERT_EQ(pins->size(), 6u);
  const std::vector<Tier> tiers = {Tier::kDevice, Tier::kDevice, Tier::kHost, Tier::kHost, Tier::kDisk, Tier::kDisk};
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ((*pins)[i].tier(), tiers[i]);
    EXPECT_EQ((*pins)[i].header().key, keys_[i]);
    ASSERT_TRUE(world_.store->Read((*pins)[i], bytes_).ok());
    EXPECT_TRUE(HoldsBlock(keys_[i], bytes_));
    const std::span<const std::byte> in_place = world_.store->BytesInPlace((*pins)[i]);
    const bool addressable = tiers[i] == Tier::kHost || (tiers[i] == Tier::kDevice && !GetParam());
    ASSERT_EQ(in_place.size(), addressable ? bytes_.size() : 0u);
    EXPECT_TRUE(HoldsBlock(keys_[i], in_place));
  }
  EXPECT_EQ(world_.store->GetBooks().pinned_blocks, 2u);
  EXPECT_EQ(world_.store->GetBooks().read_pins, 4u);
  EXPECT_EQ(world_.Lookup(keys_), (Blocks{2, 4, 6})) << "reading moves nothing";
  pins->clear();
  world_.ExpectBalanced();
}

TEST_P(BlockStoreReadTest, SpansThatAreNotHeldAreNotFound) {
  const auto code = [&](const RootKey& root, const BlockKey& last, uint32_t first, uint32_t count) {
    return world_.store->PinForRead(root, last, first, count, LossyFormats()).status().code();
  };
  EXPECT_EQ(code(kOther, keys_[5], 0, 6), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(kRoot, TestChain(kRoot, 2, 1)[0], 0, 1), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(kRoot, keys_[5], 0, 5), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(kRoot, keys_[5], 1, 6), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(kRoot, keys_[5], 6, 0), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(kRoot, keys_[0], UINT32_MAX, 2), absl::StatusCode::kNotFound);
  EXPECT_EQ(world_.store->GetBooks().pinned_blocks, 0u);
  EXPECT_EQ(world_.store->GetBooks().read_pins, 0u);
}

TEST_P(BlockStoreReadTest, KeysOfASpanAreToldByItsLastOne) {
  const auto keys = [&](const RootKey& root, const BlockKey& last, uint32_t first, uint32_t count) {
    return world_.store->ChainKeys(root, last, first, count);
  };
  EXPECT_EQ(*keys(kRoot, keys_[5], 0, 6), keys_);
  EXPECT_EQ(*keys(kRoot, keys_[3], 2, 2), (std::vector<BlockKey>{keys_[2], keys_[3]}));
  EXPECT_EQ(keys(kOther, keys_[5], 0, 6).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(keys(kRoot, keys_[5], 0, 5).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(keys(kRoot, keys_[5], 6, 0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(keys(kRoot, TestChain(kRoot, 2, 1)[0], 0, 1).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(BlockStoreReadTest, FormatThatIsNotAcceptedIsNotFound) {
  const std::vector<BlockKey> lossy = TestChain(kOther, 1, 1);
  const std::vector<BlockPin> sealed = world_.SealChain(kOther, lossy, LossyFormats(1u << 5));
  EXPECT_EQ(world_.store->PinForRead(kOther, lossy[0], 0, 1, LossyFormats()).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(world_.store->PinForRead(kOther, lossy[0], 0, 1, LossyFormats(1u << 5)).ok());
}

TEST_P(BlockStoreReadTest, PinnedCopiesStayUntilTheReaderIsDone) {
  absl::StatusOr<std::vector<BlockPin>> pins = Pin(2, 4);
  ASSERT_TRUE(pins.ok()) << pins.status();
  world_.Churn(kOther, 30);
  EXPECT_EQ(world_.Lookup(keys_)[1], 4u);
  EXPECT_EQ(world_.store->EraseIdentity(kRoot), 6u);
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(world_.store->Read((*pins)[i], bytes_).ok());
    EXPECT_TRUE(HoldsBlock(keys_[i + 2], bytes_));
  }
  EXPECT_EQ(Pin(2, 4).status().code(), absl::StatusCode::kNotFound);
  pins->clear();
  world_.ExpectBalanced();
}

TEST_P(BlockStoreReadTest, CorruptMemoryIsFoundByReadAndErased) {
  absl::StatusOr<std::vector<BlockPin>> pins = Pin(2, 2);
  const_cast<std::byte*>(world_.store->BytesInPlace((*pins)[0]).data())[17] ^= std::byte{4};
  EXPECT_EQ(world_.store->Read((*pins)[0], bytes_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(world_.store->Read((*pins)[0], bytes_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(world_.Misses(MissReason::kCorrupt), 1u) << "it was erased once";
  EXPECT_EQ(world_.Lookup(keys_), (Blocks{2, 2, 6}));
  EXPECT_TRUE(world_.store->Read((*pins)[1], bytes_).ok()) << "a pinned descendant is still right";
  pins->clear();
  world_.ExpectBalanced();
}

TEST_P(BlockStoreReadTest, CorruptDiskIsFoundByReadAndErased) {
  absl::StatusOr<std::vector<BlockPin>> pins = Pin(4, 2);
  world_.disk->Corrupt(keys_[4], 8191);
  EXPECT_EQ(world_.store->Read((*pins)[0], bytes_).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(world_.Misses(MissReason::kCorrupt), 1u);
  EXPECT_EQ(world_.Lookup(keys_), (Blocks{2, 4, 4}));
  EXPECT_TRUE(world_.disk->Holds(keys_[5])) << "while it is pinned";
  pins->clear();
  EXPECT_FALSE(world_.disk->Holds(keys_[4]));
  EXPECT_FALSE(world_.disk->Holds(keys_[5]));
  world_.ExpectBalanced();
}

TEST_P(BlockStoreReadTest, FailingDiskIsUnavailable) {
  const absl::StatusOr<std::vector<BlockPin>> pins = Pin(4, 1);
  world_.disk->SetReadFault([](const BlockHeader&) { return absl::UnavailableError("EIO"); });
  EXPECT_EQ(world_.store->Read((*pins)[0], bytes_).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(world_.Misses(MissReason::kIoError), 1u);
}

TEST(BlockStoreReadBoundTest, ReadPinsAreBoundedInEveryTier) {
  StoreWorld world({.device_slots = 8, .host_slots = 4, .disk_blocks = 8});
  const std::vector<BlockKey> keys = TestChain(kRoot, 1, 6);
  world.PlantOnDisk(kRoot, keys);
  world.Restart();
  const auto pin = [&](uint32_t first, uint32_t count) {
    return world.store->PinForRead(kRoot, keys[first + count - 1], first, count, LossyFormats());
  };
  EXPECT_EQ(pin(0, 5).status().code(), absl::StatusCode::kResourceExhausted) << "half of the disk is 4";
  EXPECT_EQ(world.store->GetBooks().read_pins, 0u);
  {
    const auto four = pin(0, 4);
    ASSERT_TRUE(four.ok()) << four.status();
    EXPECT_TRUE(pin(0, 4).ok()) << "another pin of the same copies";
    EXPECT_EQ(pin(4, 1).status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_TRUE(pin(2, 4).ok());

  const BlockStore::Acquired device = world.Acquire({keys.data(), 4});
  ASSERT_EQ(device.pins.size(), 4u);
  EXPECT_TRUE(pin(0, 4).ok()) << "pinned already";
  const std::vector<BlockPin> none;
  EXPECT_EQ(world.store->Allocate().status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace kvmesh
