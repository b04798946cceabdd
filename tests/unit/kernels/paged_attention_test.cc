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

void ExpectNear(const std::vector<float>& want, const std::vector<float>& got, float tolerance) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isinf(want[i])) {
      ASSERT_EQ(want[i], got[i]) << "element " << i;
    } else {
      ASSERT_NEAR(want[i], got[i], tolerance * (1 + std::abs(want[i]))) << "element " << i;
    }
  }
}

void Check(const Case& c) {
  SCOPED_TRACE(c.Describe());
  World w(c);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> want(w.query.size(), nan), got(w.query.size(), nan), want_lse(w.rows, nan), got_lse(w.rows, nan);
  reference::PagedAttention(w.query, w.sequences, 1, w.params, w.pool.view(), want, want_lse);
  PagedAttention(w.query, w.sequences, 1, w.params, w.pool.view(), got, got_lse);
  // The reference reads the stored values too, so the format costs no accuracy here.
  ExpectNear(want, got, 1e-5f);
  ExpectNear(want_lse, got_lse, 1e-5f);
}

TEST(PagedAttentionTest, MatchesReferenceAtRandomShapes) {
  const int32_t block_tokens[] = {1, 8, 16, 64, 100};
  const int32_t head_dims[] = {8, 16, 24, 32, 64, 80, 96, 128, 256};
  const int64_t windows[] = {0, 0, 1, 2, 17, 64, 100, 100000};
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](const auto& from) { return from[random() % std::size(from)]; };
    Case c{.format = pick(kFormats),
           .kv_heads = static_cast<int32_t>(1 + random() % 3),
           .group = static_cast<int32_t>(1 + random() % 16),
           .block_tokens = pick(block_tokens),
           .head_dim = pick(head_dims),
           .window = pick(windows),
           .soft_cap = random() % 3 == 0 ? 5.0f : 0.0f,
           .sinks = random() % 3 == 0,
           .shares = {},
           .seed = seed};
    for (uint64_t n = 1 + random() % 4; n > 0; --n) {
      c.shares.push_back(
          {static_cast<int64_t>(random() % 300) - 2, static_cast<int64_t>(random() % 3 ? random() % 50 : 1)});
    }
    Check(c);
    if (HasFatalFailure()) return;
  }
}

TEST(PagedAttentionTest, MatchesReferenceAtBlockBoundaries) {
  uint64_t seed = 1000;
  for (int32_t block_tokens : {1, 8, 16, 64}) {
    for (int32_t head_dim : {8, 80, 128}) {
      Case c{.format = kFormats[seed % 6],
             .kv_heads = 2,
             .group = 2,
             .block_tokens = block_tokens,
             .head_dim = head_dim,
             .shares = {},
             .seed = ++seed};
      for (int64_t tokens : {1, block_tokens - 1, block_tokens, block_tokens + 1, 4097}) {
        if (tokens > 0) c.shares.push_back({tokens - 1, 1});
      }
      c.shares.push_back({0, 0});
      c.shares.push_back({4090, 7});
      Check(c);
      if (HasFatalFailure()) return;
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
      std::vector<float> want(w.query.size()), got(w.query.size()), want_lse(w.rows), got_lse(w.rows);
      reference::PagedAttention(w.query, w.sequences, 0, w.params, w.pool.view(), want, want_lse);
      PagedAttention(w.query, w.sequences, 0, w.params, w.pool.view(), got, got_lse);
      // The error of a score grows with the score.
      ExpectNear(want, got, 1e-5f * std::max(1.0f, stretch));
      ExpectNear(want_lse, got_lse, 1e-5f);
    }
  }
}

TEST(PagedAttentionTest, RowsWithoutKeysGiveZeroAndMinusInfinity) {
  World w({.kv_heads = 2, .group = 3, .shares = {{-3, 2}, {-1, 1}}, .seed = 4});
  std::vector<float> out(w.query.size(), 5), lse(w.rows, 5);
  PagedAttention(w.query, w.sequences, 0, w.params, w.pool.view(), out, lse);
  for (float x : out) EXPECT_EQ(x, 0);
  for (float x : lse) EXPECT_EQ(x, -std::numeric_limits<float>::infinity());
}

TEST(PagedAttentionTest, RowsWithoutKeysGiveZeroAndTheSink) {
  World w({.kv_heads = 2, .group = 3, .sinks = true, .shares = {{-3, 2}, {-1, 1}}, .seed = 4});
  std::vector<float> out(w.query.size(), 5), lse(w.rows, 5);
  PagedAttention(w.query, w.sequences, 0, w.params, w.pool.view(), out, lse);
  for (float x : out) EXPECT_EQ(x, 0);
  for (size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i], w.sinks[i % 6], 1e-6) << i;
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
  World w({.shares = {{0, 200}}, .seed = 5});
  for (float& q : w.query) q *= 1e4f;
  std::vector<float> out(w.query.size()), lse(w.rows);
  PagedAttention(w.query, w.sequences, 0, w.params, w.pool.view(), out, lse);
  for (float x : out) EXPECT_TRUE(std::isfinite(x));
  for (float x : lse) EXPECT_TRUE(std::isfinite(x));
}

TEST(PagedAttentionTest, VisibleNanShows) {
  World w({.shares = {{0, 100}}, .seed = 6});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(w.pool.view().At(w.tables[0][70 / 16], 0, 0, 0, 70 % 16), &nan, sizeof(nan));
  std::vector<float> out(w.query.size());
  PagedAttention(w.query, w.sequences, 0, w.params, w.pool.view(), out);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i >= 70 * 64) << i;
}

TEST(PagedAttentionTest, NanDescaleShowsWhereItIsVisible) {
  for (const KvFormat format : {KvFormat::kFp8E4m3, KvFormat::kInt8, KvFormat::kInt4}) {
    World w({.format = format, .shares = {{0, 100}}, .seed = 6});
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const KvPoolView& pool = w.pool.view();
    std::memcpy(pool.base + w.tables[0][70 / 16] * pool.slot_stride + pool.layout.ScaleOffset(0, 0, 0, 70 % 16), &nan,
                sizeof(nan));
    std::vector<float> out(w.query.size());
    PagedAttention(w.query, w.sequences, 0, w.params, pool, out);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(std::isnan(out[i]), i >= 70 * 64) << i;
  }
}

TEST(PagedAttentionTest, KeysBeforeTheWindowAreNotRead) {
  World w({.window = 20, .shares = {{100, 5}}, .seed = 8});
  std::vector<float> want(w.query.size()), got(w.query.size());
  PagedAttention(w.query, w.sequences, 0, w.params, w.pool.view(), want);
  // Position 81 is the first that the window of position 100 holds: what stands before may be gone.
  for (int i = 0; i < 81 / 16; ++i) w.tables[0][i] = 0xffffffff;
  std::memset(w.pool.view().At(w.tables[0][5], 0, 0, 0, 0), 0xff, 64 * sizeof(float));
  PagedAttention(w.query, w.sequences, 0, w.params, w.pool.view(), got);
  EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0);
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
