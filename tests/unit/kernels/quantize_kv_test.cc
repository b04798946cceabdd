#include "kernels/quantize_kv.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "kernels/reference/reference.h"
#include "kernels/stored_rows.h"
#include "random_pool.h"
#ifdef KVMESH_HAVE_HIGHWAY
#include <hwy/highway.h>
#endif

namespace kvmesh {
namespace {

constexpr KvFormat kFormats[] = {KvFormat::kF32,     KvFormat::kF16,  KvFormat::kBf16,
                                 KvFormat::kFp8E4m3, KvFormat::kInt8, KvFormat::kInt4};
constexpr KvFormat kQuantized[] = {KvFormat::kFp8E4m3, KvFormat::kInt8, KvFormat::kInt4};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One row alone: a block of one layer, head and token.
BlockLayout RowLayout(KvFormat format, int32_t elements, bool mla = false) {
  return mla ? CanonicalMlaLayout(format, 1, 1, elements - 8, 8) : CanonicalLayout(format, 1, 1, 1, elements);
}

struct Row {
  explicit Row(const BlockLayout& l) : layout(l), bytes(static_cast<size_t>(l.block_bytes), std::byte{0xa5}) {}

  std::byte* descales() { return bytes.data() + layout.ScaleOffset(0, 0, 0, 0); }
  float Descale(int64_t group) {
    float out;
    std::memcpy(&out, descales() + group * kDescaleBytes, sizeof(out));
    return out;
  }
  void Quantize(std::span<const float> x) { QuantizeRow(x, layout, bytes.data(), descales()); }
  std::vector<float> Dequantize() {
    std::vector<float> out(layout.head_dim);
    DequantizeRow(bytes.data(), descales(), layout, out);
    return out;
  }

  BlockLayout layout;
  std::vector<std::byte> bytes;
};

// Random rows of all magnitudes: some groups with zeros, NaN or infinities, some tiny, some huge.
std::vector<float> WildRow(int32_t elements, std::mt19937_64& random) {
  std::vector<float> out = RandomFloats(elements, random, std::ldexp(1.0f, static_cast<int>(random() % 250) - 148));
  for (float& x : out) {
    if (random() % 16 == 0) x = random() % 2 ? 0.0f : -0.0f;
  }
  if (random() % 4 == 0) out[random() % elements] = random() % 2 ? kNan : -kInfinity;
  if (random() % 8 == 0) std::fill(out.begin(), out.begin() + elements / 2, 0.0f);
  return out;
}

TEST(QuantizeRowTest, IsTheNearestMultipleOfTheDescaleByASearchInDouble) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    const KvFormat format = kQuantized[seed % 3];
    const bool mla = random() % 3 == 0;
    Row row(RowLayout(format, 8 * static_cast<int32_t>(2 + random() % 30), mla));
    SCOPED_TRACE("seed=" + std::to_string(seed) + " format=" + std::to_string(static_cast<int>(format)));
    const std::vector<float> x = RandomFloats(row.layout.head_dim, random, std::exp(RandomFloats(1, random)[0]));
    row.Quantize(x);
    const std::vector<float> got = row.Dequantize();
    const int32_t group = row.layout.scale_group;
    for (int32_t first = 0; first < row.layout.head_dim; first += group) {
      const int32_t last = std::min(first + group, row.layout.head_dim);
      float most = 0;
      for (int32_t i = first; i < last; ++i) most = std::max(most, std::abs(x[i]));
      const double descale = row.Descale(first / group);
      ASSERT_EQ(descale, most / LargestStored(format));
      // Every number that the format stores.
      std::vector<double> numbers;
      for (int code = 0; code < (format == KvFormat::kInt4 ? 16 : 256); ++code) {
        const std::byte run[4] = {static_cast<std::byte>(code)};
        const double number = LoadElement(run, 0, format);
        if (std::abs(number) <= LargestStored(format)) numbers.push_back(number);
      }
      for (int32_t i = first; i < last; ++i) {
        double nearest = kInfinity;
        for (double number : numbers) nearest = std::min(nearest, std::abs(number * descale - x[i]));
        ASSERT_LE(std::abs(got[i] - double{x[i]}), nearest + 1e-6 * most) << "element " << i;
      }
    }
  }
}

TEST(QuantizeRowTest, EqualsReferenceBitForBitAtAnyLength) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    std::mt19937_64 random(seed);
    const KvFormat format = kFormats[seed % 6];
    const int32_t elements = 16 + static_cast<int32_t>(random() % 300) / 2 * (random() % 4 == 0 ? 2 : 8);
    Row got(RowLayout(format, elements, random() % 4 == 0));
    Row want(got);
    SCOPED_TRACE("seed=" + std::to_string(seed) + " format=" + std::to_string(static_cast<int>(format)) +
                 " elements=" + std::to_string(elements));
    const std::vector<float> x = WildRow(elements, random);
    got.Quantize(x);
    reference::QuantizeRows(x.data(), want.layout, {.row = want.bytes.data(), .descales = want.descales(), .count = 1});
    ASSERT_EQ(got.bytes, want.bytes);
    const std::vector<float> values = got.Dequantize();
    std::vector<float> expected(elements);
    reference::DequantizeRows({.row = want.bytes.data(), .descales = want.descales(), .count = 1}, want.layout,
                              expected.data());
    ASSERT_EQ(std::memcmp(values.data(), expected.data(), values.size() * sizeof(float)), 0);
  }
}

TEST(QuantizeRowTest, EveryStoredByteReadsAsInTheReference) {
  for (const KvFormat format : kFormats) {
    Row row(RowLayout(format, 512));
    for (size_t i = 0; i < row.bytes.size(); ++i) row.bytes[i] = static_cast<std::byte>(i * 3);
    for (int64_t g = 0; g < row.layout.scale_groups(); ++g) {
      const float descale = 0.37f;
      std::memcpy(row.descales() + g * kDescaleBytes, &descale, sizeof(descale));
    }
    const std::vector<float> got = row.Dequantize();
    std::vector<float> want(got.size());
    reference::DequantizeRows({.row = row.bytes.data(), .descales = row.descales(), .count = 1}, row.layout,
                              want.data());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_TRUE(got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i])))
          << "format " << static_cast<int>(format) << " element " << i;
    }
  }
}

TEST(QuantizeRowTest, GroupsOfZerosAndOfTheTiniestNumbersGiveZeros) {
  for (const KvFormat format : kQuantized) {
    for (const float x : {0.0f, -0.0f, std::numeric_limits<float>::denorm_min()}) {
      Row row(RowLayout(format, 64));
      row.Quantize(std::vector<float>(64, x));
      for (const float value : row.Dequantize()) EXPECT_EQ(std::bit_cast<uint32_t>(value), 0u);
    }
  }
}

TEST(QuantizeRowTest, HugeNumbersStayFiniteAndNearlyExact) {
  constexpr float kMost = 3.4e38f;
  for (const KvFormat format : kQuantized) {
    Row row(RowLayout(format, 64));
    std::vector<float> x(64, kMost);
    x[3] = -kMost;
    row.Quantize(x);
    const std::vector<float> got = row.Dequantize();
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(got[i] / x[i], 1, 1e-6);
  }
}

TEST(QuantizeRowTest, NanAndInfinityMakeTheirGroupNanAndNoOther) {
  for (const KvFormat format : kQuantized) {
    for (const float bad : {kNan, -kNan, kInfinity, -kInfinity}) {
      Row row(RowLayout(format, 192, format != KvFormat::kInt4));  // groups of 64 or 32
      const int32_t group = row.layout.scale_group;
      std::mt19937_64 random(5);
      std::vector<float> x = RandomFloats(192, random);
      row.Quantize(x);
      const std::vector<float> without = row.Dequantize();
      x[70] = bad;
      row.Quantize(x);
      const std::vector<float> with = row.Dequantize();
      for (int32_t i = 0; i < 192; ++i) {
        if (i / group == 70 / group) {
          EXPECT_TRUE(std::isnan(with[i])) << i;
        } else {
          EXPECT_EQ(with[i], without[i]) << i;
        }
      }
    }
  }
}

TEST(QuantizeRowDeathTest, BrokenRequirementsAbort) {
  Row row(RowLayout(KvFormat::kInt8, 16));
  std::vector<float> x(15);
  EXPECT_DEATH(row.Quantize(x), "x is not");
  EXPECT_DEATH(DequantizeRow(row.bytes.data(), row.descales(), row.layout, x), "out is not");
  row.layout.format = KvFormat::kUnspecified;
  EXPECT_DEATH(row.Quantize(std::vector<float>(16)), "no format");
}

// Layouts of one random shape, in both formats.
struct Pair {
  Pair(KvFormat from_format, KvFormat to_format, std::mt19937_64& random) {
    const int32_t layers = 1 + random() % 2, heads = 1 + random() % 3, tokens = 1 + random() % 40;
    const int32_t elements = 2 * static_cast<int32_t>(1 + random() % 70);
    const auto make = [&, mla = random() % 3 == 0](KvFormat format) {
      return mla ? CanonicalMlaLayout(format, layers, tokens, elements, 8)
                 : CanonicalLayout(format, layers, heads, tokens, elements);
    };
    from = make(from_format);
    to = make(to_format);
  }
  BlockLayout from;
  BlockLayout to;
};

// Calls visit(layer, kv, head, token) for each row of a block.
template <class Visit>
void ForEachRow(const BlockLayout& layout, Visit visit) {
  for (int64_t layer = 0; layer < layout.layers; ++layer) {
    for (int64_t kv = 0; kv < (layout.mla() ? 1 : 2); ++kv) {
      for (int64_t head = 0; head < layout.kv_heads; ++head) {
        for (int64_t token = 0; token < layout.block_tokens; ++token) visit(layer, kv, head, token);
      }
    }
  }
}

std::vector<std::byte> RandomBlock(const BlockLayout& layout, std::mt19937_64& random) {
  std::vector<std::byte> out(static_cast<size_t>(layout.block_bytes));
  ForEachRow(layout, [&](int64_t layer, int64_t kv, int64_t head, int64_t token) {
    const std::vector<float> x = WildRow(layout.head_dim, random);
    reference::QuantizeRows(x.data(), layout, RowsOfTokens(layout, out.data(), layer, kv, head, token, 1));
  });
  return out;
}

TEST(ConvertBlockTest, EqualsDequantizeThenQuantizeRowByRow) {
  for (uint64_t seed = 1; seed <= 180; ++seed) {
    std::mt19937_64 random(seed);
    const Pair pair(kFormats[seed % 6], kFormats[seed / 6 % 6], random);
    SCOPED_TRACE("seed=" + std::to_string(seed));
    const std::vector<std::byte> in = RandomBlock(pair.from, random);
    std::vector<std::byte> got(static_cast<size_t>(pair.to.block_bytes), std::byte{0xa5});
    ConvertBlock(pair.from, in, pair.to, got);
    std::vector<std::byte> want(got.size());
    ForEachRow(pair.from, [&](int64_t layer, int64_t kv, int64_t head, int64_t token) {
      std::vector<float> x(pair.from.head_dim);
      reference::DequantizeRows(RowsOfTokens(pair.from, in.data(), layer, kv, head, token, 1), pair.from, x.data());
      reference::QuantizeRows(x.data(), pair.to, RowsOfTokens(pair.to, want.data(), layer, kv, head, token, 1));
    });
    if (pair.from.format == pair.to.format) want = in;
    ASSERT_EQ(got, want) << static_cast<int>(pair.from.format) << " to " << static_cast<int>(pair.to.format);
  }
}

TEST(ConvertBlockTest, ThereAndBackGivesTheSameBitsWhereConvertsBackSaysSo) {
  int exact = 0;
  for (const KvFormat from : kFormats) {
    for (const KvFormat to : kFormats) {
      std::mt19937_64 random(7);
      const Pair pair(from, to, random);
      const std::vector<std::byte> in = RandomBlock(pair.from, random);
      std::vector<std::byte> there(static_cast<size_t>(pair.to.block_bytes)), back(in.size());
      ConvertBlock(pair.from, in, pair.to, there);
      ConvertBlock(pair.to, there, pair.from, back);
      if (!ConvertsBack(from, to)) continue;
      ++exact;
      EXPECT_EQ(in, back) << static_cast<int>(from) << " to " << static_cast<int>(to);
    }
  }
  EXPECT_EQ(exact, 6 + 2);
}

TEST(ConvertBlockTest, FollowsStridesAndLeavesGaps) {
  const BlockLayout from = CanonicalLayout(KvFormat::kF32, 2, 2, 3, 16);
  BlockLayout to = CanonicalLayout(KvFormat::kInt8, 2, 2, 3, 16);
  to.token_stride += 5;
  to.scale_offset = to.token_stride * 3 + 1;
  to.scale_token_stride += 3;
  to.head_stride = to.scale_offset + to.scale_token_stride * 3 + 7;
  to.kv_stride = to.head_stride * 2 + 11;
  to.layer_stride = to.kv_stride * 2;
  to.block_bytes = to.layer_stride * 2 + 9;
  std::mt19937_64 random(8);
  const std::vector<std::byte> in = RandomBlock(from, random);
  std::vector<std::byte> got(static_cast<size_t>(to.block_bytes), std::byte{0xa5});
  std::vector<std::byte> want(got);
  ConvertBlock(from, in, to, got);
  ForEachRow(from, [&](int64_t layer, int64_t kv, int64_t head, int64_t token) {
    std::vector<float> x(16);
    std::memcpy(x.data(), in.data() + from.Offset(layer, kv, head, token), 64);
    reference::QuantizeRows(x.data(), to, RowsOfTokens(to, want.data(), layer, kv, head, token, 1));
  });
  EXPECT_EQ(got, want);
}

TEST(ConvertBlockDeathTest, BrokenRequirementsAbort) {
  const BlockLayout from = CanonicalLayout(KvFormat::kF32, 1, 2, 4, 16);
  const BlockLayout other = CanonicalLayout(KvFormat::kInt8, 1, 2, 4, 24);
  const BlockLayout to = CanonicalLayout(KvFormat::kInt8, 1, 2, 4, 16);
  std::vector<std::byte> in(static_cast<size_t>(from.block_bytes)), out(static_cast<size_t>(other.block_bytes));
  EXPECT_DEATH(ConvertBlock(from, in, other, out), "different shapes");
  EXPECT_DEATH(ConvertBlock(from, in, to, out), "block_bytes");
}

#ifdef KVMESH_HAVE_HIGHWAY
TEST(QuantizeRowTest, AllInstructionSetsGiveTheSameBits) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (uint64_t seed = 1; seed <= 60; ++seed) {
      std::mt19937_64 random(seed);
      const BlockLayout layout = RowLayout(kFormats[seed % 6], 16 + 2 * static_cast<int32_t>(random() % 100));
      const std::vector<float> x = WildRow(layout.head_dim, random);
      Row got(layout), want(layout);
      cpu::QuantizeRows(x.data(), layout, {.row = got.bytes.data(), .descales = got.descales(), .count = 1});
      reference::QuantizeRows(x.data(), layout, {.row = want.bytes.data(), .descales = want.descales(), .count = 1});
      EXPECT_EQ(got.bytes, want.bytes) << hwy::TargetName(target) << " seed=" << seed;
      std::vector<float> values(x.size()), expected(x.size());
      cpu::DequantizeRows({.row = got.bytes.data(), .descales = got.descales(), .count = 1}, layout, values.data());
      reference::DequantizeRows({.row = got.bytes.data(), .descales = got.descales(), .count = 1}, layout,
                                expected.data());
      EXPECT_EQ(std::memcmp(values.data(), expected.data(), x.size() * sizeof(float)), 0)
          << hwy::TargetName(target) << " seed=" << seed;
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}
#endif

}  // namespace
}  // namespace kvmesh
