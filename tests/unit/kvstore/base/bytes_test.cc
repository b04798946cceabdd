#include "kvstore/base/bytes.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/container/flat_hash_set.h"

namespace kvmesh {
namespace {

using Id = FixedBytes<struct IdTag, 16>;

TEST(FixedBytesTest, TakesExactlyItsSize) {
  EXPECT_TRUE(Id::FromBytes(std::string(16, 'x')).has_value());
  EXPECT_FALSE(Id::FromBytes(std::string(15, 'x')).has_value());
  EXPECT_FALSE(Id::FromBytes(std::string(17, 'x')).has_value());
  EXPECT_FALSE(Id::FromBytes("").has_value());
}

TEST(FixedBytesTest, KeepsAndShowsItsBytes) {
  const std::string raw("\x00\x01\xfe\xff\0\0\0\0\0\0\0\0\0\0\0\x10", 16);
  const Id id = *Id::FromBytes(raw);
  EXPECT_EQ(id.ToString(), raw);
  EXPECT_EQ(id.view(), raw);
  EXPECT_EQ(id.ToHex(), "0001feff000000000000000000000010");
}

TEST(FixedBytesTest, OrderIsThatOfTheBytes) {
  Id a;
  Id b;
  EXPECT_EQ(a, b);
  EXPECT_TRUE(a.IsZero());
  b.bytes[15] = 1;
  EXPECT_LT(a, b);
  a.bytes[0] = 1;
  EXPECT_GT(a, b);
  EXPECT_FALSE(a.IsZero());
}

TEST(FixedBytesTest, IsAHashKey) {
  absl::flat_hash_set<Id> set;
  Id a;
  Id same_start;
  same_start.bytes[15] = 9;
  set.insert(a);
  set.insert(same_start);
  set.insert(a);
  EXPECT_EQ(set.size(), 2u);
  EXPECT_TRUE(set.contains(same_start));
}

TEST(LittleEndianTest, LowByteComesFirst) {
  std::string out = "x";
  AppendLittleEndian(uint16_t{0x0102}, out);
  AppendLittleEndian(uint32_t{0xfffefdfc}, out);
  AppendLittleEndian(uint64_t{1}, out);
  AppendLittleEndian(uint8_t{7}, out);
  EXPECT_EQ(out, std::string("x\x02\x01\xfc\xfd\xfe\xff\x01\0\0\0\0\0\0\0\x07", 16));
}

}  // namespace
}  // namespace kvmesh
