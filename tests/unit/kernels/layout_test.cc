#include "kernels/layout.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvmesh {
namespace {

TEST(LayoutTest, HeadsAreDenseAndDescalesFollowTheirRows) {
  const BlockLayout bf16 = CanonicalLayout(KvFormat::kBf16, 3, 2, 16, 64);
  EXPECT_EQ(bf16.block_bytes, 3 * 2 * 2 * 16 * 64 * 2);
  EXPECT_EQ(bf16.scale_groups(), 0);
  EXPECT_EQ(bf16.Offset(2, 1, 1, 15), ((2 * 2 + 1) * 2 + 1) * 16 * 128 + 15 * 128);

  const BlockLayout int8 = CanonicalLayout(KvFormat::kInt8, 3, 2, 16, 80);
  EXPECT_EQ(int8.scale_groups(), 1);
  EXPECT_EQ(int8.head_stride, 16 * (80 + 4));
  EXPECT_EQ(int8.block_bytes, 3 * 2 * 2 * 16 * (80 + 4));
  EXPECT_EQ(int8.ScaleOffset(2, 1, 1, 15), 11 * 16 * 84 + 16 * 80 + 15 * 4);

  const BlockLayout int4 = CanonicalLayout(KvFormat::kInt4, 1, 1, 8, 80);
  EXPECT_EQ(int4.scale_groups(), 3);
  EXPECT_EQ(int4.token_stride, 40);
  EXPECT_EQ(int4.block_bytes, 2 * 8 * (40 + 12));
}

TEST(LayoutTest, MlaKeepsOneRowForKeyAndValue) {
  const BlockLayout bf16 = CanonicalMlaLayout(KvFormat::kBf16, 61, 16, 512, 64);
  EXPECT_EQ(bf16.block_bytes, 61 * 16 * 576 * 2);
  EXPECT_EQ(bf16.block_bytes / 16, 70272);  // bytes per token of DeepSeek-V3
  EXPECT_EQ(bf16.Offset(3, 0, 0, 2), bf16.Offset(3, 1, 0, 2));
  const BlockLayout fp8 = CanonicalMlaLayout(KvFormat::kFp8E4m3, 2, 16, 512, 64);
  EXPECT_EQ(fp8.scale_groups(), 9);
  EXPECT_EQ(fp8.block_bytes, 2 * 16 * (576 + 36));
}

// No two rows or descales of a block overlap, and together they are the whole block.
TEST(LayoutTest, RowsAndDescalesTileTheBlock) {
  for (const KvFormat format :
       {KvFormat::kF32, KvFormat::kF16, KvFormat::kBf16, KvFormat::kFp8E4m3, KvFormat::kInt8, KvFormat::kInt4}) {
    for (const bool mla : {false, true}) {
      const BlockLayout layout = mla ? CanonicalMlaLayout(format, 2, 3, 96, 16) : CanonicalLayout(format, 2, 3, 5, 80);
      std::vector<int> owners(static_cast<size_t>(layout.block_bytes));
      const auto claim = [&](int64_t offset, int64_t bytes) {
        for (int64_t i = offset; i < offset + bytes; ++i) ++owners.at(static_cast<size_t>(i));
      };
      for (int layer = 0; layer < layout.layers; ++layer) {
        for (int kv = 0; kv < (mla ? 1 : 2); ++kv) {
          for (int head = 0; head < layout.kv_heads; ++head) {
            for (int token = 0; token < layout.block_tokens; ++token) {
              claim(layout.Offset(layer, kv, head, token), KvRowBytes(format, layout.head_dim));
              if (layout.scale_group > 0) {
                claim(layout.ScaleOffset(layer, kv, head, token), layout.scale_groups() * kDescaleBytes);
              }
            }
          }
        }
      }
      EXPECT_EQ(owners, std::vector<int>(owners.size(), 1)) << static_cast<int>(format) << " mla " << mla;
    }
  }
}

}  // namespace
}  // namespace kvmesh
