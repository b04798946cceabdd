#include "worker/server/named_pins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/kvstore/tiers/store_world.h"

namespace kvmesh {
namespace {

class NamedPinsTest : public testing::Test {
 protected:
  std::vector<BlockPin> Pins(uint32_t branch, size_t blocks) {
    return world_.SealChain(root_, TestChain(root_, branch, blocks));
  }
  uint64_t pinned() { return world_.store->GetBooks().pinned_blocks; }
  absl::Time In(absl::Duration time) { return world_.clock.Now() + time; }

  const RootKey root_ = TestRoot(1);
  StoreWorld world_{{.device_slots = 16, .max_pinned_fraction = 1.0}};
  NamedPins pins_{world_.clock};
};

TEST_F(NamedPinsTest, APinHoldsUntilItIsDropped) {
  ASSERT_TRUE(pins_.Set("a", Pins(1, 3), In(absl::Hours(1))).ok());
  ASSERT_TRUE(pins_.Set("b", Pins(2, 2), In(absl::Hours(1))).ok());
  EXPECT_EQ(pinned(), 5u);
  world_.Churn(TestRoot(2), 40);
  EXPECT_EQ(world_.Lookup(TestChain(root_, 1, 3))[0], 3u);
  EXPECT_TRUE(pins_.Drop("a"));
  EXPECT_EQ(pinned(), 2u);
  EXPECT_FALSE(pins_.Drop("a"));
  EXPECT_FALSE(pins_.Drop("c"));
  EXPECT_EQ(pins_.size(), 1u);
}

TEST_F(NamedPinsTest, SettingANameAgainReplacesItsPins) {
  ASSERT_TRUE(pins_.Set("a", Pins(1, 3), In(absl::Hours(1))).ok());
  ASSERT_TRUE(pins_.Set("a", Pins(2, 1), In(absl::Minutes(1))).ok());
  EXPECT_EQ(pinned(), 1u);
  EXPECT_EQ(pins_.size(), 1u);
  world_.clock.AdvanceTo(In(absl::Minutes(1)));
  pins_.DropExpired();
  EXPECT_EQ(pins_.size(), 0u);
  world_.ExpectBalanced();
}

TEST_F(NamedPinsTest, PinsEndAtTheirDeadline) {
  ASSERT_TRUE(pins_.Set("soon", Pins(1, 1), In(absl::Seconds(1))).ok());
  ASSERT_TRUE(pins_.Set("late", Pins(2, 1), In(absl::Seconds(2))).ok());
  world_.clock.AdvanceTo(In(absl::Milliseconds(999)));
  pins_.DropExpired();
  EXPECT_EQ(pins_.size(), 2u);
  world_.clock.AdvanceTo(In(absl::Milliseconds(1)));
  pins_.DropExpired();
  EXPECT_EQ(pins_.size(), 1u);
  EXPECT_EQ(pinned(), 1u);
  EXPECT_TRUE(pins_.Drop("late"));
}

TEST_F(NamedPinsTest, NamesAreBounded) {
  for (size_t i = 0; i < NamedPins::kMaxNamedPins; ++i) {
    ASSERT_TRUE(pins_.Set(absl::StrCat(i), {}, In(absl::Hours(1))).ok());
  }
  EXPECT_THAT(pins_.Set("more", Pins(1, 2), In(absl::Hours(1))).ToString(), testing::HasSubstr("pin_id: the limit"));
  EXPECT_EQ(pinned(), 0u);
  EXPECT_TRUE(pins_.Set("0", Pins(2, 2), In(absl::Hours(1))).ok());
  EXPECT_TRUE(pins_.Drop("1"));
  EXPECT_TRUE(pins_.Set("more", {}, In(absl::Hours(1))).ok());
}

}  // namespace
}  // namespace kvmesh
