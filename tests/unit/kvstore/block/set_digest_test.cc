#include "kvstore/block/set_digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "absl/strings/escaping.h"

namespace kvmesh {
namespace {

BlockKey Repeated(uint8_t byte) {
  BlockKey key;
  key.bytes.fill(byte);
  return key;
}

TEST(SetDigestTest, SumOfThreeMembersIsGolden) {
  SetDigest digest;
  for (uint8_t i = 0; i < 3; ++i) digest.Add(SetMember(Repeated(i), Repeated(i + 1), LossyFormats(i)));
  EXPECT_EQ(absl::BytesToHexString(digest.SumBytes()), "90d0bdd184a4e26877d7a1f84b49f2dd");
  EXPECT_EQ(digest.count(), 3u);
}

TEST(SetDigestTest, OneMemberIsGolden) {
  SetDigest digest;
  digest.Add(SetMember(Repeated(0), Repeated(1), LossyFormats()));
  EXPECT_EQ(absl::BytesToHexString(digest.SumBytes()), "6352870abda7c19271cd05b67d9ee8ec");
}

TEST(SetDigestTest, OrderDoesNotMatterAndRemovalUndoes) {
  constexpr uint32_t kSeed = 3;
  std::mt19937 random(kSeed);
  std::vector<unsigned __int128> members;
  for (uint32_t i = 0; i < 100; ++i) {
    BlockKey key;
    for (uint8_t& byte : key.bytes) byte = static_cast<uint8_t>(random());
    members.push_back(SetMember(Repeated(i), key, LossyFormats(i % 4)));
  }
  SetDigest forward;
  for (auto member : members) forward.Add(member);
  std::shuffle(members.begin(), members.end(), random);
  SetDigest shuffled;
  for (auto member : members) shuffled.Add(member);
  EXPECT_EQ(forward, shuffled) << "seed " << kSeed;
  for (auto member : members) shuffled.Remove(member);
  EXPECT_EQ(shuffled, SetDigest());
  EXPECT_EQ(SetDigest().SumBytes(), std::string(16, '\0'));
}

TEST(SetDigestTest, EveryPartOfAMemberCounts) {
  const auto member = SetMember(Repeated(1), Repeated(2), LossyFormats(0));
  EXPECT_NE(member, SetMember(Repeated(3), Repeated(2), LossyFormats(0)));
  EXPECT_NE(member, SetMember(Repeated(1), Repeated(3), LossyFormats(0)));
  EXPECT_NE(member, SetMember(Repeated(1), Repeated(2), LossyFormats(1)));
}

}  // namespace
}  // namespace kvmesh
