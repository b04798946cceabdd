#include "kernels/block_checksum.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/xxh3.h"
#if __has_include(<xxhash.h>)
#define XXH_INLINE_ALL
#include <xxhash.h>
#define KVMESH_TEST_XXHASH 1
#endif

namespace kvmesh {
namespace {

// Byte i is 131 i + 17 (i / 256) + 7.
constexpr std::byte PatternByte(size_t i) { return static_cast<std::byte>((i * 131 + (i >> 8) * 17 + 7) & 0xff); }

std::vector<std::byte> Pattern(size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i) out[i] = PatternByte(i);
  return out;
}

TEST(BlockChecksumTest, MatchesGoldenValues) {
  // Header and payload are patterns of these lengths; the values come from another implementation of XXH3.
  struct Golden {
    size_t header;
    size_t payload;
    uint64_t sum;
  };
  constexpr Golden kGolden[] = {{0, 0, 0x2d06800538d394c2},        {40, 0, 0x6d69b860559c44a8},
                                {0, 1, 0xcf6f6c9964662384},        {0, 4096, 0x4249606ccd4dc5a6},
                                {13, 4097, 0xdda10a12a2ec99b4},    {128, 16384, 0x549bab1fc4d6bf2f},
                                {128, 100000, 0xecccd7646b3426ae}, {128, 4194304, 0x9d22a03c99382bf8}};
  for (const Golden& golden : kGolden) {
    EXPECT_EQ(BlockChecksum(Pattern(golden.header), Pattern(golden.payload)), golden.sum)
        << golden.header << " " << golden.payload;
  }
}

TEST(BlockChecksumTest, EveryBitCounts) {
  std::vector<std::byte> header = Pattern(24);
  std::vector<std::byte> payload = Pattern(9000);
  const uint64_t sum = BlockChecksum(header, payload);
  for (std::vector<std::byte>* part : {&header, &payload}) {
    for (size_t i = 0; i < part->size(); i += 7) {
      (*part)[i] ^= std::byte{0x10};
      ASSERT_NE(BlockChecksum(header, payload), sum) << i;
      (*part)[i] ^= std::byte{0x10};
    }
  }
  EXPECT_EQ(BlockChecksum(header, payload), sum);
}

TEST(Xxh3Test, MatchesGoldenValues) {
  struct Golden {
    size_t bytes;
    uint64_t sum;
  };
  constexpr Golden kGolden[] = {
      {0, 0x2d06800538d394c2},    {1, 0x4c5cca45d0f4811f},    {3, 0x6e3e2670e61106ac},    {4, 0x5c4c63133443d03f},
      {8, 0xf9fd4dd0b04d78f5},    {9, 0x7c20df9712c26edf},    {16, 0x86abf6baccea0858},   {17, 0xb58bf5dc5022d071},
      {128, 0x10d17f72c0ccba41},  {129, 0x1648bdc3db49d1a2},  {240, 0xb6cfaf343fab81e6},  {241, 0x956cae592c67279e},
      {1024, 0xa1e16f2edf2cbed6}, {1025, 0x0a6d2c17259fe4bb}, {4096, 0x48aa0572119e973a}, {100000, 0x61b222b374cf1fa7}};
  for (const Golden& golden : kGolden) EXPECT_EQ(Xxh3(Pattern(golden.bytes)), golden.sum) << golden.bytes;
}

constexpr uint64_t SumOfPatternAtCompileTime() {
  std::byte bytes[300] = {};
  for (size_t i = 0; i < std::size(bytes); ++i) bytes[i] = PatternByte(i);
  return Xxh3(std::span<const std::byte>(bytes, 241));
}
static_assert(SumOfPatternAtCompileTime() == 0x956cae592c67279e);

#ifdef KVMESH_TEST_XXHASH
TEST(Xxh3Test, MatchesTheLibraryAtEveryLength) {
  const std::vector<std::byte> bytes = Pattern(3 << 20);
  std::vector<size_t> lengths;
  for (size_t n = 0; n <= 2000; ++n) lengths.push_back(n);
  for (size_t n : {4095, 4096, 4097, 65535, 65536, 1000003, 3 << 20}) lengths.push_back(n);
  for (size_t n : lengths) {
    ASSERT_EQ(Xxh3(std::span(bytes).first(n)), XXH3_64bits(bytes.data(), n)) << "length " << n;
    ASSERT_EQ(Xxh3(std::span(bytes).last(n)), XXH3_64bits(bytes.data() + bytes.size() - n, n)) << "length " << n;
  }
}
#endif

}  // namespace
}  // namespace kvmesh
