#include "kernels/paged_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention_world.h"
#include "kernels/quantize_kv.h"
#include "kernels/reference/reference.h"

namespace kvmesh {
namespace {

constexpr KvFormat kFormats[] = {KvFormat::kF32,     KvFormat::kF16,  KvFormat::kBf16,
                                 KvFormat::kFp8E4m3, KvFormat::kInt8, KvFormat::kInt4};

// Every variant against the reference.
void Check(const Case& c) {
  SCOPED_TRACE(c.Describe());
  const World w(c);
  Result want(w.query.size(), w.rows);
  reference::PagedAttention(w.query, w.sequences, 1, w.params, w.pool.view(), want.out, want.lse);
  for (const KernelVariant variant : UsableVariants()) {
    SCOPED_TRACE(KernelVariantName(variant));
    const Result got = w.Attend(variant);
    ExpectNear(want.out, got.out, Tolerance(variant, c.format));
    ExpectNear(want.lse, got.lse, Tolerance(variant, c.format));
  }
}

TEST(PagedAttentionTest, MatchesReferenceAtRandomShapes) {
  const CaseLimits limits{.block_tokens = {1, 8, 16, 64, 100},
                          .head_dims = {8, 16, 24, 32, 64, 80, 96, 128, 256},
                          .windows = {0, 0, 1, 2, 17, 64, 100, 100000},
                          .kv_heads = 3,
                          .group = 16,
                          .shares = 4,
                          .positions = 300,
                          .queries = 50};
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Check(RandomCase(seed, kFormats[seed % std::size(kFormats)], limits));
    if (HasFatalFailure()) return;
  }
}

TEST(PagedAttentionTest, MatchesReferenceAtBlockBoundaries) {
  const int32_t groups[] = {1, 2, 3, 4, 7, 16};
  uint64_t seed = 1000;
  for (int32_t block_tokens : {1, 8, 16, 64}) {
    for (int32_t head_dim : {64, 80, 96, 128, 256}) {
      for (KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8, kFormats[seed % 6]}) {
        const int64_t windows[] = {0, 1, block_tokens + 1, 5000};
        Case c{.format = format,
               .group = groups[seed % 6],
               .block_tokens = block_tokens,
               .head_dim = head_dim,
               .window = windows[seed % 4],
               .sinks = seed % 5 == 0,
               .shares = {{-1, 1}, {0, 0}},
               .seed = seed};
        for (int64_t tokens : {1, block_tokens - 1, block_tokens, block_tokens + 1}) {
          if (tokens > 0) c.shares.push_back({tokens - 1, 1});
        }
        // Long ones now and then: the reference takes its time.
        if (++seed % 4 == 0) c.shares.push_back({4096, 1});
        Check(c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(PagedAttentionTest, MatchesReferenceAtEveryGroupAndWidth) {
  uint64_t seed = 2000;
  for (int32_t head_dim : {8, 64, 80, 96, 128, 256}) {
    for (int32_t group : {1, 2, 3, 4, 5, 7, 8, 16}) {
      Check({.format = kFormats[seed % 6],
             .kv_heads = 2,
             .group = group,
             .head_dim = head_dim,
             .shares = {{100, 1}, {0, 70}},
             .seed = ++seed});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PagedAttentionTest, WindowCountsTheQuerysOwnPosition) {
  for (int64_t window = 1; window <= 140; ++window) {
    Check({.kv_heads = 1, .group = 2, .head_dim = 16, .window = window, .shares = {{0, 130}, {129, 1}}, .seed = 7});
    if (HasFatalFailure()) return;
  }
}

TEST(PagedAttentionTest, WindowOfOneReturnsTheValue) {
  World w({.head_dim = 8, .window = 1, .shares = {{40, 1}}, .seed = 3});
  std::vector<float> out(8);
  PagedAttention(w.query, w.sequences, 0, w.params, w.pool.view(), out);
  EXPECT_EQ(std::memcmp(out.data(), w.pool.view().At(w.tables[0][2], 0, 1, 0, 8), sizeof(float) * 8), 0);
}

TEST(PagedAttentionTest, SoftCapMatchesReferenceOverItsRange) {
  uint64_t seed = 3000;
  for (float cap : {0.1f, 1.0f, 20.0f, 50.0f, 1000.0f}) {
    for (float stretch : {0.01f, 1.0f, 30.0f}) {
      const Case c{.kv_heads = 2, .group = 2, .soft_cap = cap, .shares = {{0, 90}, {500, 1}}, .seed = ++seed};
      SCOPED_TRACE(c.Describe() + " stretch=" + std::to_string(stretch));
      World w(c);
      for (float& q : w.query) q *= stretch;
      Result want(w.query.size(), w.rows);
      reference::PagedAttention(w.query, w.sequences, 1, w.params, w.pool.view(), want.out, want.lse);
      for (const KernelVariant variant : UsableVariants()) {
        const Result got = w.Attend(variant);
        // The error of a score grows with the score.
        ExpectNear(want.out, got.out, 1e-5f * std::max(1.0f, stretch));
        ExpectNear(want.lse, got.lse, 1e-5f);
      }
    }
  }
}

TEST(PagedAttentionTest, RowsWithoutKeysGiveZeroAndMinusInfinityOrTheSink) {
  for (const KernelVariant variant : UsableVariants()) {
    for (const bool sinks : {false, true}) {
      const World w({.kv_heads = 2, .group = 3, .sinks = sinks, .shares = {{-3, 2}, {-1, 1}}, .seed = 4});
      const Result got = w.Attend(variant);
      for (float x : got.out) EXPECT_EQ(x, 0);
      for (size_t i = 0; i < got.lse.size(); ++i) {
        EXPECT_EQ(got.lse[i], sinks ? w.sinks[i % 6] : -std::numeric_limits<float>::infinity()) << i;
      }
    }
  }
}

// softmax over one score s and a sink a leaves the value with weight 1 / (1 + e^(a - s)).
TEST(PagedAttentionTest, SinkTakesItsShareAndNothingElse) {
  World w({.head_dim = 8, .window = 1, .sinks = true, .shares = {{40, 1}}, .seed = 3});
  const std::byte* block = w.pool.view().base + w.tables[0][2] * w.pool.view().slot_stride;
  const auto element = [&](int64_t kv, int64_t d) {
    float value;
    std::memcpy(&value, block + w.pool.view().layout.Offset(0, kv, 0, 8) + d * 4, sizeof(value));
    return double{value};
  };
  double score = 0;
  for (int64_t d = 0; d < 8; ++d) score += w.query[d] * element(0, d);
  score *= w.params.scale;
  for (const float sink : {-std::numeric_limits<float>::infinity(), -100.0f, -1.0f, 0.0f, 2.5f, 100.0f}) {
    w.sinks[0] = sink;
    std::vector<float> out(8), lse(1);
    PagedAttention(w.query, w.sequences, 0, w.params, w.pool.view(), out, lse);
    for (int64_t d = 0; d < 8; ++d) EXPECT_NEAR(out[d], element(1, d) / (1 + std::exp(sink - score)), 1e-5) << sink;
    EXPECT_NEAR(lse[0], std::log(std::exp(score) + std::exp(double{sink})), 1e-4) << sink;
  }
}

TEST(PagedAttentionTest, NoSequencesAndNoQueriesDoNothing) {
  World w({.shares = {{10, 0}}, .seed = 4});
  PagedAttention({}, w.sequences, 0, w.params, w.pool.view(), {});
  PagedAttention({}, {}, 0, w.params, w.pool.view(), {});
}

TEST(PagedAttentionTest, ExtremeScoresStayFinite) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8}) {
    World w({.format = format, .shares = {{0, 200}}, .seed = 5});
    for (float& q : w.query) q *= 1e4f;
    for (const KernelVariant variant : UsableVariants()) {
      const Result got = w.Attend(variant);
      for (float x : got.out) EXPECT_TRUE(std::isfinite(x));
      for (float x : got.lse) EXPECT_TRUE(std::isfinite(x));
    }
  }
}

// A NaN in a key, a value or a descale, in formats with and without NaN elements.
TEST(PagedAttentionTest, VisibleNanShowsAndNoOther) {
  for (const KvFormat format : kFormats) {
    for (const int64_t kv : {0, 1}) {
      const World w({.format = format, .group = 2, .shares = {{0, 100}}, .seed = 6});
      const KvPoolView& pool = w.pool.view();
      std::byte* block = pool.base + w.tables[0][70 / 16] * pool.slot_stride;
      const bool descale = pool.layout.scale_groups() > 0;
      const int64_t at = descale ? pool.layout.ScaleOffset(1, kv, 0, 70 % 16) : pool.layout.Offset(1, kv, 0, 70 % 16);
      std::memset(block + at, 0xff, descale || format == KvFormat::kF32 ? 4 : 2);
      for (const KernelVariant variant : UsableVariants()) {
        const Result got = w.Attend(variant);
        // A value's NaN shows in the elements that it, or its descale, stands for: the first one at least.
        const size_t step = kv == 0 || pool.layout.scale_groups() == 1 ? 1 : 64;
        for (size_t i = 0; i < got.out.size(); i += step) {
          ASSERT_EQ(std::isnan(got.out[i]), i >= 70 * 2 * 64)
              << i << " " << KernelVariantName(variant) << " format " << static_cast<int>(format) << " kv " << kv;
        }
      }
    }
  }
}

TEST(PagedAttentionTest, KeysBeforeTheWindowAreNotRead) {
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8}) {
    World w({.format = format, .window = 20, .shares = {{100, 5}}, .seed = 8});
    for (const KernelVariant variant : UsableVariants()) {
      World changed({.format = format, .window = 20, .shares = {{100, 5}}, .seed = 8});
      const Result want = w.Attend(variant);
      // Position 81 is the first that the window of position 100 holds: what stands before may be gone.
      for (int i = 0; i < 81 / 16; ++i) changed.tables[0][static_cast<size_t>(i)] = 0xffffffff;
      const KvPoolView& pool = changed.pool.view();
      std::memset(pool.At(changed.tables[0][5], 1, 0, 0, 0), 0xff, static_cast<size_t>(pool.layout.token_stride));
      EXPECT_TRUE(SameBits(changed.Attend(variant), want)) << KernelVariantName(variant);
    }
  }
}

TEST(PagedAttentionTest, BlocksBeyondFourGibibytesWork) {
  constexpr size_t kBytes = size_t{5} << 30;
  const FarMemory memory(kBytes);
  if (memory.base() == nullptr) GTEST_SKIP() << "no address space for a pool of 5 GiB";
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8}) {
    const World near({.format = format, .kv_heads = 2, .group = 2, .shares = {{59, 1}}, .seed = 2});
    const BlockLayout& layout = near.pool.view().layout;
    const int64_t slots = static_cast<int64_t>(kBytes) / layout.block_bytes;
    const std::vector<uint32_t> table = memory.Table(layout);
    const KvPoolView far{memory.base(), layout.block_bytes, slots, layout};
    for (size_t i = 0; i < table.size(); ++i) {
      std::memcpy(far.base + table[i] * far.slot_stride, near.pool.view().At(near.tables[0][i], 0, 0, 0, 0),
                  static_cast<size_t>(layout.block_bytes));
    }
    const AttentionSequence sequence{table, 59, 1};
    for (const KernelVariant variant : UsableVariants()) {
      EXPECT_TRUE(SameBits(near.Attend(variant), near.Attend(variant, {&sequence, 1}, near.query, far)));
    }
  }
}

TEST(PagedAttentionTest, RoundedPoolsStayNearTheFp32Pool) {
  // Largest difference of out and of lse: what the rounding of the elements costs on normal numbers.
  struct Limit {
    KvFormat format;
    float out;
    float lse;
  };
  for (const auto& [format, out, lse] :
       {Limit{KvFormat::kF16, 1e-2f, 1e-2f}, Limit{KvFormat::kBf16, 1e-2f, 1e-2f}, Limit{KvFormat::kInt8, 3e-2f, 3e-2f},
        Limit{KvFormat::kFp8E4m3, 1e-1f, 5e-2f}, Limit{KvFormat::kInt4, 4e-1f, 2e-1f}}) {
    Case c{.kv_heads = 2, .group = 2, .shares = {{0, 150}, {700, 1}}, .seed = 9};
    World exact(c);
    c.format = format;
    World rounded(c);  // the same numbers, since the seed is the same
    SCOPED_TRACE(c.Describe());
    std::vector<float> want(exact.query.size()), got(want.size()), want_lse(exact.rows), got_lse(exact.rows);
    PagedAttention(exact.query, exact.sequences, 0, exact.params, exact.pool.view(), want, want_lse);
    PagedAttention(exact.query, rounded.sequences, 0, rounded.params, rounded.pool.view(), got, got_lse);
    ExpectNear(want, got, out);
    ExpectNear(want_lse, got_lse, lse);
  }
}

// The oracle apart from the kernels' own reading of descales: the pool converted to fp32.
TEST(PagedAttentionTest, QuantizedPoolEqualsItsConversionToFp32) {
  for (const KvFormat format : {KvFormat::kFp8E4m3, KvFormat::kInt8, KvFormat::kInt4}) {
    const Case c{
        .format = format, .kv_heads = 2, .group = 3, .head_dim = 80, .shares = {{0, 100}, {300, 2}}, .seed = 11};
    SCOPED_TRACE(c.Describe());
    World w(c);
    const KvPoolView& from = w.pool.view();
    const BlockLayout layout = CanonicalLayout(KvFormat::kF32, w.layers, c.kv_heads, c.block_tokens, c.head_dim);
    std::vector<std::byte> bytes(static_cast<size_t>(from.slots * layout.block_bytes));
    const KvPoolView to{bytes.data(), layout.block_bytes, from.slots, layout};
    for (int64_t id = 0; id < from.slots; ++id) {
      ConvertBlock(from.layout, {from.base + id * from.slot_stride, static_cast<size_t>(from.layout.block_bytes)},
                   layout, {to.base + id * to.slot_stride, static_cast<size_t>(layout.block_bytes)});
    }
    std::vector<float> want(w.query.size()), got(want.size()), want_lse(w.rows), got_lse(w.rows);
    PagedAttention(w.query, w.sequences, 1, w.params, to, want, want_lse);
    PagedAttention(w.query, w.sequences, 1, w.params, from, got, got_lse);
    ExpectNear(want, got, 1e-2f);
    ExpectNear(want_lse, got_lse, 1e-3f);
  }
}

using PagedAttentionDeathTest = testing::Test;

TEST(PagedAttentionDeathTest, BrokenRequirementsAbort) {
  World w({.shares = {{30, 2}}, .seed = 10});
  std::vector<float> out(w.query.size());
  const auto call = [&](const AttentionParams& params, std::span<float> to) {
    PagedAttention(w.query, w.sequences, 0, params, w.pool.view(), to);
  };
  EXPECT_DEATH(call({.q_heads = 0, .scale = 1}, out), "q_heads");
  EXPECT_DEATH(call(w.params, std::span(out).first(3)), "query and out");
  const float sinks[] = {0, 0};
  EXPECT_DEATH(call({.q_heads = 1, .scale = 1, .sinks = sinks}, out), "sinks are not");
  w.tables[0].back() = 1000;
  EXPECT_DEATH(call(w.params, out), "block id outside");
  w.sequences[0].block_table = w.sequences[0].block_table.first(1);
  EXPECT_DEATH(call(w.params, out), "block table too short");
}

}  // namespace
}  // namespace kvmesh
