#include "kvstore/pool/eviction_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kvstore/pool/prefix_map.h"

namespace kvmesh {
namespace {

std::unique_ptr<EvictionPolicy> MakeLru() { return (*MakeEvictionPolicyFactory("lru"))(); }

TEST(EvictionPolicyTest, UnknownNameIsRefused) {
  EXPECT_EQ(MakeEvictionPolicyFactory("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeEvictionPolicyFactory("LRU").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(EvictionPolicyTest, FactoryMakesIndependentPolicies) {
  const EvictionPolicyFactory factory = *MakeEvictionPolicyFactory("lru");
  const auto one = factory();
  const auto other = factory();
  BlockCopy copy;
  one->Add(&copy, 1);
  EXPECT_EQ(one->Victim(), &copy);
  EXPECT_EQ(other->Victim(), nullptr);
}

TEST(LruPolicyTest, VictimIsTheLeastRecentlyUsed) {
  const auto lru = MakeLru();
  EXPECT_EQ(lru->Victim(), nullptr);
  std::vector<BlockCopy> copies(3);
  lru->Add(&copies[0], 20);
  lru->Add(&copies[1], 10);
  lru->Add(&copies[2], 30);
  EXPECT_EQ(lru->Victim(), &copies[1]);
  EXPECT_EQ(lru->Victim(), &copies[1]) << "looking does not take";
  lru->Remove(&copies[1]);
  EXPECT_FALSE(copies[1].eviction.evictable);
  EXPECT_EQ(lru->Victim(), &copies[0]);
  lru->Add(&copies[1], 40);
  lru->Remove(&copies[0]);
  EXPECT_EQ(lru->Victim(), &copies[2]);
}

TEST(LruPolicyTest, AgreesWithASearchOverAll) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto lru = MakeLru();
    std::vector<BlockCopy> copies(30);
    uint64_t clock = 0;
    for (int step = 0; step < 500; ++step) {
      BlockCopy& copy = copies[random() % copies.size()];
      if (copy.eviction.evictable) {
        lru->Remove(&copy);
      } else {
        lru->Add(&copy, ++clock);
      }
      const BlockCopy* oldest = nullptr;
      for (const BlockCopy& c : copies) {
        if (c.eviction.evictable && (oldest == nullptr || c.eviction.rank < oldest->eviction.rank)) oldest = &c;
      }
      ASSERT_EQ(lru->Victim(), oldest);
    }
  }
}

TEST(LruPolicyDeathTest, AddingTwiceOrRemovingTwiceAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto lru = MakeLru();
  BlockCopy copy;
  EXPECT_DEATH(lru->Remove(&copy), "not in the policy");
  lru->Add(&copy, 1);
  EXPECT_DEATH(lru->Add(&copy, 2), "in the policy already");
}

}  // namespace
}  // namespace kvmesh
