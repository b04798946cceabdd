#include "kvstore/tiers/disk/slot_table.h"

#include <gtest/gtest.h>

namespace kvmesh {
namespace {

BlockKey Key(uint8_t n) {
  BlockKey key;
  key.bytes.fill(n);
  return key;
}

TEST(SlotTableTest, TakesLowestSlotsFirstThenTheOneFreedLast) {
  SlotTable table;
  EXPECT_FALSE(table.Take().has_value());
  table.AddFree(0, 3);
  EXPECT_EQ(table.Take(), DiskSlot(0));
  EXPECT_EQ(table.Take(), DiskSlot(1));
  table.FinishWrite(DiskSlot(0), Key(1));
  table.FinishWrite(DiskSlot(1), Key(2));
  EXPECT_EQ(table.used(), 2u);
  EXPECT_EQ(table.BeginErase(DiskSlot(0)), Key(1));
  EXPECT_FALSE(table.IsUsed(DiskSlot(0)));
  EXPECT_EQ(table.used(), 2u);
  table.FinishErase(DiskSlot(0));
  EXPECT_EQ(table.used(), 1u);
  EXPECT_EQ(table.Take(), DiskSlot(0));
}

TEST(SlotTableTest, ClaimRefusesAbsentAndTakenSlots) {
  SlotTable table;
  table.AddFree(4, 2);
  EXPECT_FALSE(table.Claim(DiskSlot(3), Key(1)));
  EXPECT_FALSE(table.Claim(DiskSlot(6), Key(1)));
  EXPECT_TRUE(table.Claim(DiskSlot(4), Key(1)));
  EXPECT_FALSE(table.Claim(DiskSlot(4), Key(2)));
  table.SortFree();
  EXPECT_EQ(table.free(), 1u);
  EXPECT_EQ(table.Take(), DiskSlot(5));
}

TEST(SlotTableTest, AbortedSlotComesBackAndBadOneDoesNot) {
  SlotTable table;
  table.AddFree(0, 2);
  table.AbortWrite(*table.Take());
  EXPECT_EQ(table.free(), 2u);
  table.MarkBad(*table.Take());
  EXPECT_EQ(table.Take(), DiskSlot(1));
  EXPECT_FALSE(table.Take().has_value());
  EXPECT_FALSE(table.BeginErase(DiskSlot(0)).has_value());
  EXPECT_FALSE(table.BeginErase(DiskSlot(77)).has_value());
}

}  // namespace
}  // namespace kvmesh
