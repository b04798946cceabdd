#include "kvstore/block/block_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"

namespace kvmesh {
namespace {

using ::testing::HasSubstr;
using Encoded = std::array<std::byte, kBlockHeaderBytes>;

template <class Bytes>
Bytes Counting(uint8_t first) {
  Bytes out;
  std::iota(out.bytes.begin(), out.bytes.end(), first);
  return out;
}

BlockHeader Sample() {
  BlockHeader header;
  header.root = Counting<RootKey>(0x10);
  header.key = Counting<BlockKey>(0x20);
  header.parent = Counting<BlockKey>(0x30);
  header.group = 2;
  header.shard = {4, 8, 1, 3};
  header.start_position = 160;
  header.layout = Counting<LayoutFingerprint>(0x40);
  header.format = KvFormat::kBf16;
  header.lossy_formats = LossyFormats(0b1010);
  header.seal_time = absl::FromUnixMicros(1'700'000'000'123'456);
  header.payload_bytes = 65536;
  header.checksum = 0x0123456789abcdef;
  return header;
}

Encoded Encode(const BlockHeader& header) {
  Encoded out;
  EncodeBlockHeader(header, out);
  return out;
}

std::vector<std::byte> Payload(size_t size) {
  std::vector<std::byte> payload(size);
  for (size_t i = 0; i < size; ++i) payload[i] = static_cast<std::byte>(i * 31 + 7);
  return payload;
}

TEST(BlockHeaderTest, EncodingIsGolden) {
  const Encoded bytes = Encode(Sample());
  EXPECT_EQ(absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()}),
            "4b564d4201007400101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f"
            "303132333435363738393a3b3c3d3e3f020000000400080001000300a000000000000000"
            "4041424344454647030000000a00000040222018240a06000000010000000000efcdab8967452301");
}

TEST(BlockHeaderTest, DecodeReturnsWhatWasEncoded) {
  const absl::StatusOr<BlockHeader> back = DecodeBlockHeader(Encode(Sample()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, Sample());
}

TEST(BlockHeaderTest, DefaultHeaderRoundTrips) {
  const absl::StatusOr<BlockHeader> back = DecodeBlockHeader(Encode(BlockHeader()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, BlockHeader());
}

void ExpectDataLoss(const absl::Status& status, const char* part) {
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << part;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

TEST(BlockHeaderTest, DecodeRefusesWhatItDoesNotKnow) {
  const Encoded good = Encode(Sample());
  for (size_t size = 0; size < kBlockHeaderBytes; ++size) {
    ExpectDataLoss(DecodeBlockHeader(std::span(good).first(size)).status(), "shorter");
  }
  Encoded bad = good;
  bad[0] = std::byte{0};
  ExpectDataLoss(DecodeBlockHeader(bad).status(), "magic");
  bad = good;
  bad[4] = std::byte{2};
  ExpectDataLoss(DecodeBlockHeader(bad).status(), "version 2");
  bad = good;
  bad[6] = std::byte{117};
  ExpectDataLoss(DecodeBlockHeader(bad).status(), "header length 117");
  bad = good;
  bad[84] = std::byte{32};
  ExpectDataLoss(DecodeBlockHeader(bad).status(), "format 32");
}

TEST(BlockHeaderTest, VerifyAcceptsOnlyTheSealedPayload) {
  for (size_t size : {0u, 1u, 4095u, 4096u, 4097u, 12288u}) {
    std::vector<std::byte> payload = Payload(size);
    BlockHeader header = Sample();
    header.payload_bytes = size;
    header.checksum = ComputeChecksum(header, payload);
    EXPECT_TRUE(VerifyBlock(header, payload).ok()) << size;

    std::vector<std::byte> longer = payload;
    longer.push_back(std::byte{0});
    ExpectDataLoss(VerifyBlock(header, longer), "payload of");
    if (size == 0) continue;
    ExpectDataLoss(VerifyBlock(header, std::span(payload).first(size - 1)), "payload of");
    payload[size - 1] ^= std::byte{1};
    ExpectDataLoss(VerifyBlock(header, payload), "checksum");
  }
}

TEST(BlockHeaderTest, AnyFlippedBitOfTheHeaderFailsDecodeOrVerify) {
  const std::vector<std::byte> payload = Payload(5000);
  BlockHeader header = Sample();
  header.payload_bytes = payload.size();
  header.checksum = ComputeChecksum(header, payload);
  const Encoded good = Encode(header);
  ASSERT_TRUE(VerifyBlock(*DecodeBlockHeader(good), payload).ok());
  for (size_t bit = 0; bit < kBlockHeaderBytes * 8; ++bit) {
    Encoded bad = good;
    bad[bit / 8] ^= std::byte(1 << bit % 8);
    const absl::StatusOr<BlockHeader> decoded = DecodeBlockHeader(bad);
    const absl::Status status = decoded.ok() ? VerifyBlock(*decoded, payload) : decoded.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << "bit " << bit;
  }
}

TEST(BlockHeaderTest, RandomBytesNeverVerify) {
  constexpr uint32_t kSeed = 11;
  std::mt19937 random(kSeed);
  const Encoded good = Encode(Sample());
  const std::vector<std::byte> payload = Payload(64);
  for (int i = 0; i < 20000; ++i) {
    Encoded bad = good;
    for (size_t k = random() % 8 + (i % 2 == 0 ? 0 : 8); k < kBlockHeaderBytes; k += 1 + random() % 8) {
      bad[k] = static_cast<std::byte>(random());
    }
    const absl::StatusOr<BlockHeader> decoded = DecodeBlockHeader(std::span(bad).first(random() % 8 == 0 ? 100 : 116));
    if (decoded.ok()) {
      ASSERT_FALSE(VerifyBlock(*decoded, payload).ok()) << "seed " << kSeed << " step " << i;
    }
  }
}

TEST(LayoutFingerprintTest, IsGoldenAndDependsOnEveryField) {
  const BlockLayout layout = CanonicalLayout(KvFormat::kBf16, 4, 2, 16, 8);
  EXPECT_EQ(ComputeLayoutFingerprint(layout).ToHex(), "3aae6500f3436f56");
  std::vector<BlockLayout> all(15, layout);
  all[1].format = KvFormat::kF16;
  all[2].layers++;
  all[3].kv_heads++;
  all[4].block_tokens++;
  all[5].head_dim++;
  all[6].token_stride++;
  all[7].head_stride++;
  all[8].kv_stride++;
  all[9].layer_stride++;
  all[10].block_bytes++;
  all[11].latent_dim = 4;
  all[12].scale_group = 8;
  all[13].scale_group = 8, all[13].scale_offset = 1;
  all[14].scale_group = 8, all[14].scale_token_stride = 1;
  std::set<std::string> distinct;
  for (const BlockLayout& one : all) distinct.insert(ComputeLayoutFingerprint(one).ToHex());
  EXPECT_EQ(distinct.size(), all.size());
}

}  // namespace
}  // namespace kvmesh
