#include "kvstore/block/lossy_formats.h"

#include <gtest/gtest.h>

namespace kvmesh {
namespace {

TEST(LossyFormatsTest, ConversionAddsAndUnionKeepsAll) {
  LossyFormats history;
  EXPECT_TRUE(history.exact());
  history.Add(KvFormat::kF16);
  EXPECT_FALSE(history.exact());
  EXPECT_EQ(history.bits(), 1u << 2);
  LossyFormats other;
  other.Add(KvFormat::kBf16);
  EXPECT_EQ(history.Union(other).bits(), 0b1100u);
}

TEST(LossyFormatsTest, OnlyASubsetIsAccepted) {
  const LossyFormats none;
  const LossyFormats one(0b0100);
  const LossyFormats both(0b1100);
  EXPECT_TRUE(none.SubsetOf(none));
  EXPECT_TRUE(none.SubsetOf(one));
  EXPECT_TRUE(one.SubsetOf(both));
  EXPECT_FALSE(both.SubsetOf(one));
  EXPECT_FALSE(one.SubsetOf(none));
}

}  // namespace
}  // namespace kvmesh
