#include "kernels/fp8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace kvmesh {
namespace {

constexpr uint8_t kLargest = 0x7e;

// The value of a code that is not a NaN, by the definition of the format.
double Decode(int code) {
  const int exponent = (code & 0x7f) >> 3;
  const int mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - 7 - 3) : std::ldexp(mantissa + 8, exponent - 7 - 3);
  return code & 0x80 ? -magnitude : magnitude;
}

// The code nearest to x by trying all of x's sign; of two that are as near, the even one.
int Nearest(float x) {
  const int sign = std::signbit(x) ? 0x80 : 0;
  int best = sign;
  for (int code = sign; code <= (sign | kLargest); ++code) {
    const double off = std::abs(Decode(code) - double{x});
    const double best_off = std::abs(Decode(best) - double{x});
    if (off < best_off || (off == best_off && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(Fp8Test, EveryCodeDecodesAndSurvivesTheRoundTrip) {
  for (int code = 0; code < 256; ++code) {
    const float value = F32FromFp8(static_cast<uint8_t>(code));
    EXPECT_EQ(std::signbit(value), code >> 7) << code;
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, Decode(code)) << code;
    }
    EXPECT_EQ(Fp8FromF32(value), code);
  }
}

TEST(Fp8Test, RoundsToNearestTiesToEven) {
  for (int code = 0; code < kLargest; ++code) {
    const float middle = static_cast<float>((Decode(code) + Decode(code + 1)) / 2);  // exact
    EXPECT_EQ(Fp8FromF32(middle), code + (code & 1)) << code;
    EXPECT_EQ(Fp8FromF32(-middle), 0x80 + code + (code & 1)) << code;
    EXPECT_EQ(Fp8FromF32(std::nextafter(middle, 0.0f)), code) << code;
    EXPECT_EQ(Fp8FromF32(std::nextafter(middle, 1e3f)), code + 1) << code;
  }
}

TEST(Fp8Test, EqualsASearchForTheNearestCode) {
  constexpr uint64_t kSeed = 1;
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 20000; ++i) {
    // All signs and mantissas, magnitudes from below the smallest code to beyond the largest.
    const uint32_t exponent = 127 - 14 + static_cast<uint32_t>(random() % 26);
    const uint32_t bits = static_cast<uint32_t>(random()) & 0x807fffffu;
    const float x = std::bit_cast<float>(bits | exponent << 23);
    ASSERT_EQ(Fp8FromF32(x), Nearest(x)) << x << " seed=" << kSeed;
  }
}

TEST(Fp8Test, SaturatesAndKeepsNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {448.0f, std::nextafter(448.0f, 1e3f), 464.0f, 480.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(Fp8FromF32(x), kLargest) << x;
    EXPECT_EQ(Fp8FromF32(-x), 0x80 | kLargest) << x;
  }
  EXPECT_EQ(Fp8FromF32(std::numeric_limits<float>::quiet_NaN()), 0x7f);
  EXPECT_EQ(Fp8FromF32(std::bit_cast<float>(0xff800001u)), 0xff);
  EXPECT_EQ(Fp8FromF32(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(Fp8FromF32(-0.0f), 0x80);
}

static_assert(Fp8FromF32(1.0f) == 0x38 && F32FromFp8(0x38) == 1.0f && F32FromFp8(0xfe) == -kFp8Max);

}  // namespace
}  // namespace kvmesh
