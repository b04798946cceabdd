#include "kvstore/block/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace kvmesh {
namespace {

// Bytes of code point `c` in the generalized scheme (surrogates and above U+10FFFF included).
std::string Encode(uint32_t c) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  const auto tail = [&](int shift) { return byte(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x80) return std::string{byte(c)};
  if (c < 0x800) return std::string{byte(0xc0 | c >> 6), tail(0)};
  if (c < 0x10000) return std::string{byte(0xe0 | c >> 12), tail(6), tail(0)};
  return std::string{byte(0xf0 | c >> 18), tail(12), tail(6), tail(0)};
}

TEST(Utf8Test, EveryScalarValueAndNoOtherIsValid) {
  for (uint32_t c = 0; c <= 0x1fffff; ++c) {
    const bool scalar = c <= 0x10ffff && !(c >= 0xd800 && c <= 0xdfff);
    ASSERT_EQ(IsValidUtf8(Encode(c)), scalar) << std::hex << c;
  }
}

TEST(Utf8Test, OverlongFormsAreInvalid) {
  for (const char* text :
       {"\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xf0\x80\x80\x80", "\xf0\x8f\xbf\xbf"}) {
    EXPECT_FALSE(IsValidUtf8(text));
  }
}

TEST(Utf8Test, CutOrStraySequencesAreInvalid) {
  for (const char* text : {"\x80", "\xbf", "a\xc3", "\xe2\x82", "\xf0\x9f\xa6", "\xc3(", "\xe2(\xac", "\xe2\x82(",
                           "\xf0\x9f\xa6(", "\xf8\x88\x80\x80\x80", "\xfe", "\xff"}) {
    EXPECT_FALSE(IsValidUtf8(text));
  }
  EXPECT_TRUE(IsValidUtf8(""));
  EXPECT_TRUE(IsValidUtf8(absl::string_view("a\0b", 3)));
}

}  // namespace
}  // namespace kvmesh
