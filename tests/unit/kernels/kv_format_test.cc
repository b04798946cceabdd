#include "kernels/kv_format.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kvmesh {
namespace {

TEST(KvFormatTest, NamesAreFixed) {
  EXPECT_EQ(KvFormatName(KvFormat::kF32), "fp32");
  EXPECT_EQ(KvFormatName(KvFormat::kF16), "fp16");
  EXPECT_EQ(KvFormatName(KvFormat::kBf16), "bf16");
  EXPECT_EQ(KvFormatName(KvFormat::kFp8E4m3), "fp8");
  EXPECT_EQ(KvFormatName(KvFormat::kInt8), "int8");
  EXPECT_EQ(KvFormatName(KvFormat::kInt4), "int4");
  EXPECT_EQ(KvFormatName(KvFormat::kUnspecified), "unspecified");
  EXPECT_EQ(KvFormatName(static_cast<KvFormat>(31)), "unspecified");
}

TEST(KvFormatTest, EveryFormatWithElementsHasANameThatParses) {
  std::set<std::string_view> names;
  size_t formats = 0;
  for (uint32_t value = 0; value < 32; ++value) {
    const KvFormat format = static_cast<KvFormat>(value);
    if (KvFormatBits(format) == 0) continue;
    ++formats;
    names.insert(KvFormatName(format));
    EXPECT_EQ(ParseKvFormat(KvFormatName(format)), format) << value;
  }
  EXPECT_EQ(names.size(), formats);
  EXPECT_EQ(std::size(kKvFormats), formats);
}

TEST(KvFormatTest, OnlyExactNamesParse) {
  for (const std::string_view text : {"", "unspecified", "FP32", "fp32 ", " bf16", "bf1", "bf166", "f32", "e4m3"}) {
    EXPECT_EQ(ParseKvFormat(text), std::nullopt) << text;
  }
  EXPECT_EQ(ParseKvFormat(std::string_view("int8\0", 5)), std::nullopt);
}

}  // namespace
}  // namespace kvmesh
