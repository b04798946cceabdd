#include "kvstore/block/key_chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace kvmesh {
namespace {

// SHA-256 over one string of little-endian bytes, as DESIGN section 3 words it.
BlockKey LiteralKey(const BlockKey& parent, const std::vector<uint32_t>& tokens, const std::string& extra) {
  std::string bytes = parent.ToString();
  for (uint32_t token : tokens) AppendLittleEndian(token, bytes);
  bytes += extra;
  return *BlockKey::FromBytes(Sha256(bytes).view().substr(0, BlockKey::kSize));
}

TEST(KeyChainTest, ZeroParentAndSixteenTokensIsGolden) {
  std::vector<uint32_t> tokens(16);
  std::iota(tokens.begin(), tokens.end(), 0);
  EXPECT_EQ(ComputeBlockKey(BlockKey{}, tokens).ToHex(), "41f37273f5dcb9d417f8541c20d382ed");
  const Digest32 extra = Sha256("image");
  EXPECT_EQ(ComputeBlockKey(BlockKey{}, tokens, &extra).ToHex(), "add7a235734649e903778b7d01990d2b");
}

TEST(KeyChainTest, GroupKeysAreGolden) {
  BlockKey key;
  for (uint8_t i = 0; i < 16; ++i) key.bytes[i] = i;
  EXPECT_EQ(ComputeGroupKey(key, 0), key);
  EXPECT_EQ(ComputeGroupKey(key, 1).ToHex(), "924213d676c8163d17a8533eda3595ed");
  EXPECT_EQ(ComputeGroupKey(key, 2).ToHex(), "38aca96238b76d2fc271819822ce17ba");
  EXPECT_EQ(ComputeGroupKey(key, 15).ToHex(), "b85cb4703df129a5885a3adc2bdfc3a1");
}

TEST(KeyChainTest, MatchesTheLiteralFormulaForEveryBlockSize) {
  constexpr uint32_t kSeed = 7;
  std::mt19937 random(kSeed);
  for (uint32_t block_tokens : {1u, 2u, 3u, 16u, 17u, 512u, 4096u}) {
    std::vector<uint32_t> tokens(3 * block_tokens + block_tokens / 2);
    for (uint32_t& token : tokens) token = random();
    BlockKey parent;
    for (uint8_t& byte : parent.bytes) byte = static_cast<uint8_t>(random());
    const std::vector<BlockKey> keys = ComputeBlockKeys(parent, tokens, block_tokens);
    ASSERT_EQ(keys.size(), 3u) << "seed " << kSeed;
    for (uint32_t i = 0; i < 3; ++i) {
      const std::vector<uint32_t> block(tokens.begin() + i * block_tokens, tokens.begin() + (i + 1) * block_tokens);
      EXPECT_EQ(keys[i], LiteralKey(parent, block, "")) << "seed " << kSeed << " block " << i << " of " << block_tokens;
      parent = keys[i];
    }
  }
}

TEST(KeyChainTest, PartialTailHasNoKey) {
  const std::vector<uint32_t> tokens(31, 5);
  EXPECT_EQ(ComputeBlockKeys(BlockKey{}, tokens, 16).size(), 1u);
  EXPECT_TRUE(ComputeBlockKeys(BlockKey{}, std::span(tokens).first(15), 16).empty());
  EXPECT_TRUE(ComputeBlockKeys(BlockKey{}, {}, 16).empty());
}

TEST(KeyChainTest, ChainContinuesFromAnyKey) {
  std::vector<uint32_t> tokens(160);
  std::iota(tokens.begin(), tokens.end(), 100);
  const std::vector<BlockKey> whole = ComputeBlockKeys(BlockKey{}, tokens, 16);
  const std::vector<BlockKey> rest = ComputeBlockKeys(whole[3], std::span(tokens).subspan(64), 16);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.begin() + 4, whole.end()));
}

TEST(KeyChainTest, OneTokenChangesItsKeyAndAllLaterOnes) {
  std::vector<uint32_t> tokens(64, 9);
  const std::vector<BlockKey> before = ComputeBlockKeys(BlockKey{}, tokens, 16);
  tokens[20] = 10;
  const std::vector<BlockKey> after = ComputeBlockKeys(BlockKey{}, tokens, 16);
  EXPECT_EQ(before[0], after[0]);
  for (size_t i = 1; i < 4; ++i) EXPECT_NE(before[i], after[i]);
}

TEST(KeyChainTest, ExtraDigestDependsOnOrderAndOffset) {
  const NonTokenInput first{3, Sha256("image")};
  const NonTokenInput second{9, Sha256("audio")};
  const NonTokenInput moved{4, Sha256("image")};
  EXPECT_NE(ComputeExtraDigest(std::vector{first, second}), ComputeExtraDigest(std::vector{second, first}));
  EXPECT_NE(ComputeExtraDigest(std::vector{first}), ComputeExtraDigest(std::vector{moved}));
  EXPECT_EQ(ComputeExtraDigest({}), Sha256(""));
}

}  // namespace
}  // namespace kvmesh
