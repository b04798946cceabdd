#include "kernels/element.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvmesh {
namespace {

struct Format16 {
  uint16_t (*from)(float);
  float (*to)(uint16_t);
  int mantissa_bits;
  uint16_t infinity;
};

const Format16 kF16{F16FromF32, F32FromF16, 10, 0x7c00};
const Format16 kBf16{Bf16FromF32, F32FromBf16, 7, 0x7f80};

// The value of finite bits, by the definition of the format.
double Decode(const Format16& f, uint16_t bits) {
  const int exponent = (bits & 0x7fff) >> f.mantissa_bits;
  const int mantissa = bits & ((1 << f.mantissa_bits) - 1);
  const int bias = (f.infinity >> f.mantissa_bits) / 2;
  const double magnitude = exponent == 0
                               ? std::ldexp(mantissa, 1 - bias - f.mantissa_bits)
                               : std::ldexp(mantissa + (1 << f.mantissa_bits), exponent - bias - f.mantissa_bits);
  return bits & 0x8000 ? -magnitude : magnitude;
}

class ElementTest : public testing::TestWithParam<const Format16*> {};

TEST_P(ElementTest, EveryValueSurvivesTheRoundTrip) {
  const Format16& f = *GetParam();
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f.to(static_cast<uint16_t>(bits));
    if ((bits & 0x7fff) > f.infinity) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_GT(f.from(value) & 0x7fff, f.infinity) << bits;
      continue;
    }
    if ((bits & 0x7fff) == f.infinity) {
      ASSERT_TRUE(std::isinf(value)) << bits;
    } else {
      ASSERT_EQ(value, Decode(f, static_cast<uint16_t>(bits))) << bits;
    }
    ASSERT_EQ(std::signbit(value), bits >> 15) << bits;
    ASSERT_EQ(f.from(value), bits);
  }
}

TEST_P(ElementTest, RoundsToNearestTiesToEven) {
  const Format16& f = *GetParam();
  constexpr float kMost = std::numeric_limits<float>::max();
  for (uint32_t bits = 0; bits + 1 < f.infinity; ++bits) {
    const double low = Decode(f, static_cast<uint16_t>(bits));
    const double high = Decode(f, static_cast<uint16_t>(bits + 1));
    const float middle = static_cast<float>((low + high) / 2);  // exact: fp32 has more bits, but for tiny bf16
    if (middle == (low + high) / 2) {
      ASSERT_EQ(f.from(middle), bits + (bits & 1)) << bits;
      ASSERT_EQ(f.from(-middle), (bits + (bits & 1)) | 0x8000) << bits;
      ASSERT_EQ(f.from(std::nextafter(middle, 0.0f)), bits) << bits;
      ASSERT_EQ(f.from(std::nextafter(middle, kMost)), bits + 1) << bits;
    }
  }
  const double largest = Decode(f, f.infinity - 1);
  const double step = largest - Decode(f, f.infinity - 2);
  ASSERT_EQ(f.from(static_cast<float>(largest + step / 2)), f.infinity);
  ASSERT_EQ(f.from(std::nextafter(static_cast<float>(largest + step / 2), 0.0f)), f.infinity - 1);
  ASSERT_EQ(f.from(std::numeric_limits<float>::infinity()), f.infinity);
  ASSERT_GT(f.from(std::numeric_limits<float>::quiet_NaN()) & 0x7fff, f.infinity);
  ASSERT_EQ(f.from(std::numeric_limits<float>::denorm_min()), 0);
}

INSTANTIATE_TEST_SUITE_P(Formats, ElementTest, testing::Values(&kF16, &kBf16),
                         [](const auto& info) { return info.param == &kF16 ? "F16" : "Bf16"; });

TEST(IntegerElementTest, RoundsToNearestTiesToEvenAndClamps) {
  for (const int32_t limit : {kInt4Max, kInt8Max}) {
    for (int32_t i = -limit; i <= limit; ++i) {
      const float x = static_cast<float>(i);
      EXPECT_EQ(IntFromF32(x, limit), i);
      if (i == limit) continue;
      const int32_t even = i % 2 == 0 ? i : i + 1;
      EXPECT_EQ(IntFromF32(x + 0.5f, limit), even) << i;
      EXPECT_EQ(IntFromF32(std::nextafter(x + 0.5f, -1e9f), limit), i) << i;
      EXPECT_EQ(IntFromF32(std::nextafter(x + 0.5f, 1e9f), limit), i + 1) << i;
    }
    for (const float beyond : {limit + 0.4f, limit + 1.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
      EXPECT_EQ(IntFromF32(beyond, limit), limit);
      EXPECT_EQ(IntFromF32(-beyond, limit), -limit);
    }
  }
}

TEST(StoredElementTest, IsTheValueRoundedToTheFormatAndNoOtherElementChanges) {
  constexpr KvFormat kFormats[] = {KvFormat::kF32,     KvFormat::kF16,  KvFormat::kBf16,
                                   KvFormat::kFp8E4m3, KvFormat::kInt8, KvFormat::kInt4};
  constexpr int64_t kElements = 6;
  for (const KvFormat format : kFormats) {
    for (int64_t at = 0; at < kElements; ++at) {
      for (const float value : {0.0f, 1.0f, -1.0f, 5.0f, -7.0f}) {  // exact in every format
        std::byte run[kElements * 4];
        for (int64_t i = 0; i < kElements; ++i) StoreElement(static_cast<float>(i), run, i, format);
        StoreElement(value, run, at, format);
        for (int64_t i = 0; i < kElements; ++i) {
          EXPECT_EQ(LoadElement(run, i, format), i == at ? value : static_cast<float>(i))
              << "format " << static_cast<int>(format) << " element " << i;
        }
      }
    }
  }
}

TEST(StoredElementTest, Int4HasTheEvenElementInTheLowHalf) {
  std::byte both{};
  StoreElement(3, &both, 0, KvFormat::kInt4);
  StoreElement(-2, &both, 1, KvFormat::kInt4);
  EXPECT_EQ(both, std::byte{0xe3});
}

static_assert(Bf16FromF32(1.0f) == 0x3f80 && F16FromF32(1.0f) == 0x3c00 && F16FromF32(-2.0f) == 0xc000);

}  // namespace
}  // namespace kvmesh
