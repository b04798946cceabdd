#include "kvstore/pool/prefix_map.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/block_content.h"
#include "tests/unit/kvstore/pool/map_world.h"

namespace kvmesh {
namespace {

class PrefixMapTest : public testing::Test {
 protected:
  const RootKey root_ = TestRoot(1);
  const std::vector<BlockKey> keys_ = TestChain(root_, 1, 4);
  MapWorld world_;
};

TEST_F(PrefixMapTest, ChildWithoutItsParentInTheSetIsRefused) {
  world_.AddChain(root_, {keys_[0]}, Tier::kHost);
  const BlockHeader second = MapWorld::Header(root_, keys_[0], keys_[1]);
  EXPECT_EQ(world_.Add(second, 1, Tier::kDevice).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(world_.Add(second, 1, Tier::kDisk).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(world_.Add(second, 1, Tier::kHost).ok());
  const BlockHeader fourth = MapWorld::Header(root_, keys_[2], keys_[3]);
  EXPECT_EQ(world_.Add(fourth, 3, Tier::kHost).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(world_.freed.empty()) << "a refused slot stays the caller's";
}

TEST_F(PrefixMapTest, RefusedFirstBlockLeavesNoRoot) {
  const BlockHeader header = MapWorld::Header(root_, keys_[1], keys_[0]);
  EXPECT_EQ(world_.Add(header, 0, Tier::kDevice).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(world_.map.FindRoot(root_), nullptr);
  EXPECT_EQ(world_.map.size(), 0u);
}

TEST_F(PrefixMapTest, HostMayHoldALeafWhoseAncestorsAreOnTheDevice) {
  world_.AddChain(root_, keys_, Tier::kDevice);
  ASSERT_TRUE(world_.Add(MapWorld::Header(root_, keys_[2], keys_[3]), 3, Tier::kHost).ok());
  EXPECT_EQ(world_.replay.set(BlockSetKind::kMemory).size(), 4u);
  world_.map.Evict(world_.CopyOf(keys_[3], Tier::kDevice));
  EXPECT_EQ(world_.CountIn(BlockSetKind::kDevice, keys_), 3u);
  EXPECT_EQ(world_.CountIn(BlockSetKind::kMemory, keys_), 4u);
}

TEST_F(PrefixMapTest, LosingAMidChainCopyEndsItsDescendantsOnEveryBranch) {
  world_.AddChain(root_, keys_, Tier::kDevice);
  const BlockKey fork = TestChild(keys_[1], 7);
  ASSERT_TRUE(world_.Add(MapWorld::Header(root_, keys_[1], fork), 2, Tier::kDevice).ok());
  world_.changes = 0;
  world_.map.Lose(world_.CopyOf(keys_[1], Tier::kDevice));
  EXPECT_EQ(world_.map.Find(fork), nullptr);
  EXPECT_EQ(world_.CountIn(BlockSetKind::kMemory, keys_), 1u);
  EXPECT_EQ(world_.freed.size(), 4u);
  EXPECT_EQ(world_.changes, 2u) << "one truncation per set covers the descendants";
  EXPECT_EQ(world_.map.Victim(Tier::kDevice), world_.CopyOf(keys_[0], Tier::kDevice));
}

TEST_F(PrefixMapTest, LosingMemoryLeavesTheDiskSetAlone) {
  world_.AddChain(root_, keys_, Tier::kDevice);
  world_.AddChain(root_, keys_, Tier::kDisk);
  world_.map.Lose(world_.CopyOf(keys_[0], Tier::kDevice));
  EXPECT_EQ(world_.CountIn(BlockSetKind::kMemory, keys_), 0u);
  EXPECT_EQ(world_.CountIn(BlockSetKind::kDisk, keys_), 4u);
  EXPECT_EQ(world_.map.size(), 4u);
}

TEST_F(PrefixMapTest, LosingADeviceCopyKeepsWhatTheHostHolds) {
  world_.AddChain(root_, keys_, Tier::kDevice);
  world_.AddChain(root_, {keys_[0], keys_[1]}, Tier::kHost);
  world_.map.Lose(world_.CopyOf(keys_[0], Tier::kDevice));
  EXPECT_EQ(world_.CountIn(BlockSetKind::kDevice, keys_), 0u);
  EXPECT_EQ(world_.CountIn(BlockSetKind::kMemory, keys_), 2u);
}

TEST_F(PrefixMapTest, PinnedCopyThatIsLostIsFreedByItsLastUnpin) {
  world_.AddChain(root_, keys_, Tier::kDevice);
  BlockCopy* pinned = world_.CopyOf(keys_[2], Tier::kDevice);
  world_.map.Pin(pinned);
  world_.map.Pin(pinned);
  world_.map.Lose(world_.CopyOf(keys_[1], Tier::kDevice));
  EXPECT_EQ(world_.map.Find(keys_[2]), nullptr);
  EXPECT_EQ(pinned->node, nullptr);
  EXPECT_EQ(world_.map.pinned(Tier::kDevice), 1u);
  EXPECT_EQ(world_.Copies(Tier::kDevice), 1u);
  world_.map.Lose(pinned);  // lost before
  const uint64_t slot = pinned->slot;
  EXPECT_FALSE(world_.freed.contains(slot));
  world_.map.Unpin(pinned);
  EXPECT_FALSE(world_.freed.contains(slot));
  world_.map.Unpin(pinned);
  EXPECT_TRUE(world_.freed.contains(slot));
  EXPECT_EQ(world_.map.pinned(Tier::kDevice), 0u);
}

TEST_F(PrefixMapTest, GuardForbidsEvictionButIsNotAPin) {
  world_.AddChain(root_, {keys_[0]}, Tier::kDevice);
  BlockCopy* copy = world_.CopyOf(keys_[0], Tier::kDevice);
  world_.map.Guard(copy);
  EXPECT_FALSE(world_.map.CanEvict(*copy));
  EXPECT_EQ(world_.map.Victim(Tier::kDevice), nullptr);
  EXPECT_EQ(world_.map.pinned(Tier::kDevice), 0u);
  world_.map.Pin(copy);
  world_.map.Lose(copy);
  world_.map.Unpin(copy);
  EXPECT_TRUE(world_.freed.empty()) << "the guard holds it";
  world_.map.Unguard(copy);
  EXPECT_EQ(world_.freed.size(), 1u);
}

TEST_F(PrefixMapTest, LostBlockCanBeAddedAgainWhileItsOldCopyIsPinned) {
  world_.AddChain(root_, keys_, Tier::kDevice);
  BlockCopy* old = world_.CopyOf(keys_[0], Tier::kDevice);
  world_.map.Pin(old);
  world_.map.Erase(world_.map.FindRoot(root_));
  EXPECT_EQ(world_.map.FindRoot(root_), nullptr);
  world_.AddChain(root_, keys_, Tier::kDevice);
  EXPECT_EQ(world_.Copies(Tier::kDevice), 4u);
  EXPECT_NE(world_.CopyOf(keys_[0], Tier::kDevice), old);
  world_.map.Unpin(old);
  EXPECT_EQ(world_.Copies(Tier::kDevice), 4u);
}

TEST_F(PrefixMapTest, VictimsAreUnpinnedLeavesLeastRecentlyUsedFirst) {
  const std::vector<BlockKey> other = TestChain(root_, 2, 2);
  world_.AddChain(root_, {keys_[0], keys_[1]}, Tier::kDevice);
  world_.AddChain(root_, other, Tier::kDevice);
  EXPECT_EQ(world_.map.Victim(Tier::kDevice), world_.CopyOf(keys_[1], Tier::kDevice));
  std::vector<BlockNode*> chain = {world_.map.Find(keys_[0]), world_.map.Find(keys_[1])};
  world_.map.Touch(chain);
  EXPECT_EQ(world_.map.Victim(Tier::kDevice), world_.CopyOf(other[1], Tier::kDevice));
  BlockCopy* pinned = world_.CopyOf(other[1], Tier::kDevice);
  world_.map.Pin(pinned);
  EXPECT_EQ(world_.map.Victim(Tier::kDevice), world_.CopyOf(keys_[1], Tier::kDevice));
  world_.map.Evict(world_.CopyOf(keys_[1], Tier::kDevice));
  EXPECT_EQ(world_.map.Victim(Tier::kDevice), world_.CopyOf(keys_[0], Tier::kDevice));
  world_.map.Evict(world_.CopyOf(keys_[0], Tier::kDevice));
  EXPECT_EQ(world_.map.Victim(Tier::kDevice), nullptr) << "the pin holds its ancestors";
  world_.map.Unpin(pinned);
  EXPECT_EQ(world_.map.Victim(Tier::kDevice), pinned);
}

TEST_F(PrefixMapTest, EachSetHasTheLossyFormatsOfTheCopyThatSpeaksForIt) {
  const LossyFormats int8(1u << 5), int4(1u << 6);
  const auto formats_in = [this](BlockSetKind set) {
    return world_.map.Find(keys_[0])->CopyFor(set)->header.lossy_formats;
  };
  world_.AddChain(root_, {keys_[0]}, Tier::kDevice);
  const BlockKey above = RootAsParent(root_);
  ASSERT_TRUE(world_.Add(MapWorld::Header(root_, above, keys_[0], int8), 0, Tier::kHost).ok());
  ASSERT_TRUE(world_.Add(MapWorld::Header(root_, above, keys_[0], int4), 0, Tier::kDisk).ok());
  EXPECT_EQ(world_.changes, 3u);
  EXPECT_EQ(formats_in(BlockSetKind::kDevice), LossyFormats());
  EXPECT_EQ(formats_in(BlockSetKind::kMemory), LossyFormats());
  EXPECT_EQ(formats_in(BlockSetKind::kDisk), int4);
  world_.map.Evict(world_.CopyOf(keys_[0], Tier::kDevice));
  EXPECT_EQ(world_.changes, 5u) << "gone from the device, and told with the host's formats";
  EXPECT_EQ(formats_in(BlockSetKind::kMemory), int8);
  EXPECT_EQ(world_.replay.set(BlockSetKind::kMemory).at(keys_[0]).lossy_formats, int8);
  EXPECT_EQ(world_.map.digest(BlockSetKind::kMemory), world_.replay.Digest(BlockSetKind::kMemory));
  world_.AddChain(root_, {keys_[0]}, Tier::kDevice);
  EXPECT_EQ(world_.replay.set(BlockSetKind::kMemory).at(keys_[0]).lossy_formats, LossyFormats());
  EXPECT_EQ(world_.map.digest(BlockSetKind::kMemory), world_.map.digest(BlockSetKind::kDevice));
  EXPECT_FALSE(world_.map.Find(keys_[0])->HitIn(BlockSetKind::kDisk, int8));
  EXPECT_TRUE(world_.map.Find(keys_[0])->HitIn(BlockSetKind::kDisk, int8.Union(int4)));
  EXPECT_TRUE(world_.map.Find(keys_[0])->HitIn(BlockSetKind::kMemory, LossyFormats()));
}

TEST_F(PrefixMapTest, CopyWithFewerLossyFormatsTakesThePlaceOfOneWithMore) {
  const BlockKey above = RootAsParent(root_);
  const auto add = [&](uint32_t lossy, Tier tier) {
    return world_.Add(MapWorld::Header(root_, above, keys_[0], LossyFormats(lossy)), 0, tier).status().code();
  };
  for (const Tier tier : kAllTiers) {
    ASSERT_EQ(add(0b110000, tier), absl::StatusCode::kOk);
    ASSERT_TRUE(world_.Add(MapWorld::Header(root_, keys_[0], keys_[1], LossyFormats(0b110000)), 1, tier).ok());
    BlockCopy* old = world_.CopyOf(keys_[0], tier);
    world_.map.Pin(old);
    EXPECT_EQ(add(0b110000, tier), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(add(0b111000, tier), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(add(0b001000, tier), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(add(0b010000, tier), absl::StatusCode::kOk);
    EXPECT_EQ(old->node, nullptr) << "its reader keeps it";
    EXPECT_EQ(add(0b100000, tier), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(add(0, tier), absl::StatusCode::kOk);
    EXPECT_EQ(add(0, tier), absl::StatusCode::kAlreadyExists);
    EXPECT_NE(world_.CopyOf(keys_[1], tier), nullptr) << "what stands below it stays";
    const uint64_t slot = old->slot;
    EXPECT_FALSE(world_.freed.contains(slot));
    world_.map.Unpin(old);
    EXPECT_TRUE(world_.freed.contains(slot));
  }
  EXPECT_EQ(world_.freed.size(), 6u);
  for (const BlockSetKind set : kAllSets) {
    EXPECT_EQ(world_.map.digest(set), world_.replay.Digest(set));
    EXPECT_EQ(world_.CountIn(set, keys_), 2u);
  }
}

class DeepPrefixMapTest : public testing::Test {
 protected:
  static constexpr uint32_t kDepth = 65'536;  // 1,048,576 tokens in blocks of 16

  DeepPrefixMapTest() {
    world_.AddChain(root_, keys_, Tier::kDevice);
    world_.AddChain(root_, keys_, Tier::kDisk);
  }

  const RootKey root_ = TestRoot(1);
  const std::vector<BlockKey> keys_ = TestChain(root_, 1, kDepth);
  MapWorld world_;
};

TEST_F(DeepPrefixMapTest, LosingTheFirstBlockEndsTheChain) {
  BlockCopy* pinned = world_.CopyOf(keys_.back(), Tier::kDevice);
  world_.map.Pin(pinned);
  world_.map.Lose(world_.CopyOf(keys_[0], Tier::kDevice));
  EXPECT_EQ(world_.Copies(Tier::kDevice), 0u);
  EXPECT_EQ(world_.Copies(Tier::kDisk), kDepth);
  EXPECT_EQ(world_.freed.size(), kDepth - 1);
  EXPECT_EQ(world_.map.digest(BlockSetKind::kMemory), SetDigest());
  world_.map.Unpin(pinned);
  EXPECT_EQ(world_.freed.size(), kDepth);
  world_.map.Lose(world_.CopyOf(keys_[0], Tier::kDisk));
  EXPECT_EQ(world_.map.size(), 0u);
  EXPECT_EQ(world_.map.FindRoot(root_), nullptr);
}

TEST_F(DeepPrefixMapTest, ErasingTheIdentityEndsTheChain) {
  world_.map.Erase(world_.map.FindRoot(root_));
  EXPECT_EQ(world_.map.size(), 0u);
  EXPECT_EQ(world_.freed.size(), 2 * kDepth);
}

TEST_F(DeepPrefixMapTest, WholeMapEndsWithItsOwner) { EXPECT_EQ(world_.map.size(), kDepth); }

TEST(PrefixMapDeathTest, MisuseAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const RootKey root = TestRoot(1);
  const std::vector<BlockKey> keys = TestChain(root, 1, 2);
  MapWorld world;
  world.AddChain(root, keys, Tier::kDevice);
  EXPECT_DEATH(world.map.Evict(world.CopyOf(keys[0], Tier::kDevice)), "others depend on");
  EXPECT_DEATH(world.map.Unpin(world.CopyOf(keys[0], Tier::kDevice)), "without pins");
  EXPECT_DEATH(world.map.Unguard(world.CopyOf(keys[0], Tier::kDevice)), "without guards");
  EXPECT_DEATH(
      {
        MapWorld ends;
        ends.AddChain(root, keys, Tier::kDevice);
        ends.map.Pin(ends.CopyOf(keys[0], Tier::kDevice));
      },
      "ends with pinned copies");
}

}  // namespace
}  // namespace kvmesh
