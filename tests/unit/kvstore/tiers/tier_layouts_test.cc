#include "kvstore/tiers/tier_layouts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/kv_format.h"
#include "kernels/quantize_kv.h"
#include "tests/unit/kvstore/tiers/format_content.h"

namespace kvmesh {
namespace {

TEST(LayoutInFormatTest, HasTheDimensionsOfTheLayoutAndTheCanonicalStrides) {
  const BlockLayout f32 = CanonicalLayout(KvFormat::kF32, 3, 2, 16, 8);
  for (const KvFormat format : kKvFormats) {
    const absl::StatusOr<BlockLayout> layout = LayoutInFormat(f32, format);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(*layout, CanonicalLayout(format, 3, 2, 16, 8));
    EXPECT_EQ(*LayoutInFormat(*layout, KvFormat::kF32), f32);
  }
  const BlockLayout mla = CanonicalMlaLayout(KvFormat::kBf16, 3, 16, 64, 32);
  EXPECT_EQ(*LayoutInFormat(mla, KvFormat::kInt8), CanonicalMlaLayout(KvFormat::kInt8, 3, 16, 64, 32));
  BlockLayout packed = f32;
  packed.layer_stride += 64;
  packed.block_bytes += 3 * 64;
  EXPECT_EQ(*LayoutInFormat(packed, KvFormat::kF32), packed) << "its own format is its own layout";
}

TEST(LayoutInFormatTest, WhatCanNotBeStoredIsRefusedByName) {
  const auto message = [](const BlockLayout& layout, KvFormat format) {
    const absl::Status status = LayoutInFormat(layout, format).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message(CanonicalLayout(KvFormat::kF32, 1, 1, 16, 7), KvFormat::kInt4),
            "int4: rows of 7 elements, must be even");
  const BlockLayout large = CanonicalLayout(KvFormat::kBf16, 80, 8, 128, 128);
  EXPECT_EQ(message(large, KvFormat::kF32), "blocks of 83886080 bytes, the limit is 67108864");
  EXPECT_EQ(message(large, KvFormat::kUnspecified), "format: none");
}

TEST(TierLayoutsTest, OnlyFormatsThatConvertBackAreExact) {
  struct Case {
    KvFormat device, tier;
    bool exact;
  };
  for (const auto& [device, tier, exact] : {Case{KvFormat::kBf16, KvFormat::kF32, true},
                                            {KvFormat::kF16, KvFormat::kF32, true},
                                            {KvFormat::kBf16, KvFormat::kBf16, true},
                                            {KvFormat::kF32, KvFormat::kBf16, false},
                                            {KvFormat::kF32, KvFormat::kF16, false},
                                            {KvFormat::kF16, KvFormat::kBf16, false},
                                            {KvFormat::kBf16, KvFormat::kFp8E4m3, false},
                                            {KvFormat::kF32, KvFormat::kInt8, false},
                                            {KvFormat::kF32, KvFormat::kInt4, false}}) {
    const BlockLayout layout = CanonicalLayout(device, 2, 2, 16, 16);
    const TierLayouts layouts({layout, *LayoutInFormat(layout, tier), layout});
    LossyFormats before, after;
    before.Add(KvFormat::kFp8E4m3);
    after.Add(KvFormat::kFp8E4m3);
    if (!exact) after.Add(tier);
    EXPECT_EQ(layouts.AfterMove(before, Tier::kHost), after) << KvFormatName(device) << " to " << KvFormatName(tier);
    EXPECT_EQ(layouts.AfterMove(after, Tier::kDevice), after) << "moving up adds nothing, and nothing removes";
    EXPECT_EQ(layouts.Same(Tier::kHost, Tier::kDisk), device == tier);
  }
}

TEST(TierLayoutsTest, MoveVerifiesConvertsSealsAndCounts) {
  const BlockLayout f32 = CanonicalLayout(KvFormat::kF32, 2, 2, 16, 16);
  const BlockLayout int8 = *LayoutInFormat(f32, KvFormat::kInt8);
  TierLayouts layouts({f32, int8, f32});
  const BlockKey key = TestChild(BlockKey{}, 1);
  std::vector<std::byte> in = FormatContent(key, f32), out(layouts.block_bytes(Tier::kHost));
  BlockHeader header;
  header.key = key;
  header.shard = WholeShard(f32);
  header.layout = ComputeLayoutFingerprint(f32);
  header.format = KvFormat::kF32;
  header.payload_bytes = in.size();
  header.checksum = ComputeChecksum(header, in);
  ASSERT_TRUE(layouts.Fits(header, Tier::kDevice));
  EXPECT_FALSE(layouts.Fits(header, Tier::kHost));

  const absl::StatusOr<BlockHeader> down = layouts.Move(header, Tier::kDevice, in, Tier::kHost, out);
  ASSERT_TRUE(down.ok()) << down.status();
  BlockHeader expected = header;
  expected.layout = ComputeLayoutFingerprint(int8);
  expected.format = KvFormat::kInt8;
  expected.lossy_formats = LossyFormats(1u << 5);
  expected.payload_bytes = static_cast<uint64_t>(int8.block_bytes);
  std::vector<std::byte> payload(out.size());
  ConvertBlock(f32, in, int8, payload);
  expected.checksum = ComputeChecksum(expected, payload);
  EXPECT_EQ(*down, expected);
  EXPECT_EQ(out, payload);
  EXPECT_TRUE(layouts.Fits(*down, Tier::kHost));

  std::vector<std::byte> back(in.size());
  const absl::StatusOr<BlockHeader> up = layouts.Move(*down, Tier::kHost, out, Tier::kDevice, back);
  ASSERT_TRUE(up.ok()) << up.status();
  EXPECT_TRUE(VerifyBlock(*up, back).ok());
  EXPECT_EQ(up->lossy_formats, LossyFormats(1u << 5));
  const absl::StatusOr<BlockHeader> same = layouts.Move(header, Tier::kDevice, in, Tier::kDisk, back);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(*same, header);
  EXPECT_EQ(back, in);

  in[7] ^= std::byte{1};
  EXPECT_EQ(layouts.Move(header, Tier::kDevice, in, Tier::kHost, out).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(layouts.Move(header, Tier::kDevice, in, Tier::kDisk, back).status().code(), absl::StatusCode::kDataLoss);
  const ConversionBooks books = layouts.books();
  const auto of = [&books](Tier tier, ConversionDirection direction) {
    return books[static_cast<size_t>(tier)][static_cast<size_t>(direction)];
  };
  EXPECT_EQ(of(Tier::kHost, ConversionDirection::kDown).blocks, 1u);
  EXPECT_EQ(of(Tier::kHost, ConversionDirection::kUp).blocks, 1u);
  EXPECT_EQ(of(Tier::kDisk, ConversionDirection::kDown).blocks, 0u) << "a copy is no conversion";
  EXPECT_GT(of(Tier::kHost, ConversionDirection::kDown).time, absl::ZeroDuration());
}

TEST(TierLayoutsTest, OtherDimensionsAreRefusedByName) {
  const BlockLayout device = CanonicalLayout(KvFormat::kF32, 2, 2, 16, 16);
  const auto message = [&device](const BlockLayout& other) {
    return std::string(TierLayouts::Comparable(device, other).message());
  };
  EXPECT_EQ(message(CanonicalLayout(KvFormat::kInt8, 2, 2, 16, 16)), "");
  EXPECT_EQ(message(CanonicalLayout(KvFormat::kInt8, 3, 2, 16, 16)), "layers: 3, the device has 2");
  EXPECT_EQ(message(CanonicalLayout(KvFormat::kInt8, 2, 1, 16, 16)), "kv_heads: 1, the device has 2");
  EXPECT_EQ(message(CanonicalLayout(KvFormat::kInt8, 2, 2, 8, 16)), "block_tokens: 8, the device has 16");
  EXPECT_EQ(message(CanonicalLayout(KvFormat::kInt8, 2, 2, 16, 8)), "head_dim: 8, the device has 16");
  EXPECT_EQ(message(BlockLayout{.layers = 2, .kv_heads = 2, .block_tokens = 16, .head_dim = 16}), "format: none");
}

}  // namespace
}  // namespace kvmesh
