#include "kernels/mla.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "attention_result.h"
#include "byte_pool.h"
#include "invariance.h"
#include "kernels/cpu/kernels.h"
#include "kernels/quantize_kv.h"
#include "kernels/reference/reference.h"
#include "random_pool.h"
#ifdef KVMESH_HAVE_HIGHWAY
#include <hwy/highway.h>
#endif

namespace kvmesh {
namespace {

// What a call is drawn from.
struct Case {
  KvFormat format = KvFormat::kF32;
  int32_t q_heads = 4;
  int32_t block_tokens = 16;
  int32_t latent_dim = 64;
  int32_t rope_dim = 16;
  std::vector<Share> shares;
  uint64_t seed = 0;

  std::string Describe() const {
    std::string out = "seed=" + std::to_string(seed) + " format=" + std::to_string(static_cast<uint32_t>(format)) +
                      " q_heads=" + std::to_string(q_heads) + " block_tokens=" + std::to_string(block_tokens) +
                      " latent_dim=" + std::to_string(latent_dim) + " rope_dim=" + std::to_string(rope_dim) +
                      " shares=";
    for (const Share& s : shares) out += std::to_string(s.first_position) + "+" + std::to_string(s.queries) + " ";
    return out;
  }
};

// A case in memory. What no sequence holds is bytes 0xff: NaN in every format.
struct World {
  explicit World(const Case& c)
      : c(c),
        layout(CanonicalMlaLayout(c.format, 2, c.block_tokens, c.latent_dim, c.rope_dim)),
        memory(layout, Slots(c), c.seed),
        pool(memory.view()),
        params{.q_heads = c.q_heads, .scale = 1.0f / std::sqrt(static_cast<float>(layout.head_dim))} {
    for (const Share& s : c.shares) {
      tables.push_back(memory.AddSequence(std::max<int64_t>(s.first_position + s.queries, 0)));
      rows += static_cast<size_t>(s.queries) * c.q_heads;
    }
    for (size_t i = 0; i < tables.size(); ++i) {
      sequences.push_back({tables[i], c.shares[i].first_position, c.shares[i].queries});
    }
    query = RandomFloats(rows * layout.head_dim, memory.random());
  }

  static int64_t Slots(const Case& c) {
    int64_t slots = 3;
    for (const Share& s : c.shares) {
      slots += BlocksFor(std::max<int64_t>(s.first_position + s.queries, 0), c.block_tokens);
    }
    return slots;
  }

  Result Attend() const { return Attend(sequences, query); }
  Result Attend(std::span<const AttentionSequence> of, std::span<const float> with) const {
    const size_t count = with.size() / layout.head_dim;
    Result out(count * c.latent_dim, count);
    MlaPagedDecode(with, of, 1, params, pool, out.out, out.lse);
    return out;
  }
  // Of sequence 0, whose queries start at position 0.
  std::span<const float> Queries(int64_t first, int64_t count) const {
    const size_t row = static_cast<size_t>(c.q_heads) * layout.head_dim;
    return std::span<const float>(query).subspan(first * row, count * row);
  }
  std::span<const uint32_t> table() const { return tables[0]; }
  std::byte* Row(size_t sequence, int64_t token, int32_t layer) const {
    return pool.At(tables[sequence][token / c.block_tokens], layer, 0, 0, token % c.block_tokens);
  }
  std::byte* Descales(size_t sequence, int64_t token, int32_t layer) const {
    return pool.base + tables[sequence][token / c.block_tokens] * pool.slot_stride +
           layout.ScaleOffset(layer, 0, 0, token % c.block_tokens);
  }
  int64_t DescaleBytes() const { return layout.scale_groups() * kDescaleBytes; }

  Case c;
  BlockLayout layout;
  RandomPool memory;
  KvPoolView pool;
  MlaParams params;
  std::vector<std::vector<uint32_t>> tables;
  std::vector<AttentionSequence> sequences;
  size_t rows = 0;
  std::vector<float> query;
};

// The reference reads the stored values too, so the format costs no accuracy here.
void Check(const Case& c) {
  SCOPED_TRACE(c.Describe());
  const World w(c);
  Result want(w.rows * c.latent_dim, w.rows);
  reference::MlaPagedDecode(w.query, w.sequences, 1, w.params, w.pool, want.out, want.lse);
  const Result got = w.Attend();
  ExpectNear(want.out, got.out, 1e-5f);
  ExpectNear(want.lse, got.lse, 1e-5f);
}

TEST(MlaPagedDecodeTest, MatchesReferenceAtRandomShapes) {
  const int32_t block_tokens[] = {1, 8, 16, 64, 100};
  const int32_t latent_dims[] = {8, 16, 24, 64, 96, 128, 512};
  const int32_t rope_dims[] = {0, 8, 16, 64};
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    Case c{.format = kAllFormats[random() % 6],
           .q_heads = static_cast<int32_t>(1 + random() % 20),
           .block_tokens = block_tokens[random() % 5],
           .latent_dim = latent_dims[random() % 7],
           .rope_dim = rope_dims[random() % 4],
           .shares = {},
           .seed = seed};
    for (uint64_t n = 1 + random() % 3; n > 0; --n) {
      c.shares.push_back(
          {static_cast<int64_t>(random() % 200) - 2, static_cast<int64_t>(random() % 3 ? random() % 12 : 1)});
    }
    Check(c);
    if (HasFatalFailure()) return;
  }
}

TEST(MlaPagedDecodeTest, MatchesReferenceAtBlockBoundaries) {
  uint64_t seed = 1000;
  for (int32_t block_tokens : {1, 8, 16, 64}) {
    Case c{.format = kAllFormats[seed % 6], .q_heads = 2, .block_tokens = block_tokens, .shares = {}, .seed = ++seed};
    for (int64_t tokens : {1, block_tokens - 1, block_tokens, block_tokens + 1, 4097}) {
      if (tokens > 0) c.shares.push_back({tokens - 1, 1});
    }
    c.shares.push_back({0, 0});
    c.shares.push_back({block_tokens * 5 - 2, 4});
    Check(c);
    if (HasFatalFailure()) return;
  }
}

TEST(MlaPagedDecodeTest, MatchesReferenceAtTheShapeOfDeepSeek) {
  for (const KvFormat format : kAllFormats) {
    Check({.format = format, .q_heads = 128, .latent_dim = 512, .rope_dim = 64, .shares = {{70, 1}}, .seed = 1});
  }
}

TEST(MlaPagedDecodeTest, RowsWithoutKeysGiveZeroAndMinusInfinity) {
  const World w({.q_heads = 3, .shares = {{-3, 2}, {-1, 1}, {5, 0}}, .seed = 4});
  const Result got = w.Attend();
  for (float x : got.out) EXPECT_EQ(x, 0);
  for (float x : got.lse) EXPECT_EQ(x, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(w.Attend({}, {}).out.size(), 0u);
}

TEST(MlaPagedDecodeTest, LseIsOptional) {
  const World w({.shares = {{70, 2}}, .seed = 5});
  const Result want = w.Attend();
  std::vector<float> out(want.out.size());
  MlaPagedDecode(w.query, w.sequences, 1, w.params, w.pool, out);
  EXPECT_EQ(out, want.out);
}

TEST(MlaPagedDecodeTest, OneRowIsItsLatent) {
  const World w({.q_heads = 2, .shares = {{0, 1}}, .seed = 6});
  const Result got = w.Attend();
  for (int head = 0; head < 2; ++head) {
    EXPECT_EQ(std::memcmp(&got.out[head * 64], w.Row(0, 0, 1), 64 * sizeof(float)), 0);
  }
}

TEST(MlaPagedDecodeTest, HalfPrecisionPoolsStayNearTheFp32Pool) {
  Case c{.shares = {{0, 100}, {700, 1}}, .seed = 9};
  const World exact(c);
  const Result want = exact.Attend();
  for (const KvFormat format : {KvFormat::kF16, KvFormat::kBf16}) {
    c.format = format;
    const World rounded(c);  // the same numbers, since the seed is the same
    const Result got = rounded.Attend();
    ExpectNear(want.out, got.out, 1e-2f);
    ExpectNear(want.lse, got.lse, 1e-2f);
  }
}

TEST(MlaPagedDecodeTest, ExtremeScoresStayFinite) {
  World w({.shares = {{0, 150}}, .seed = 7});
  for (float& q : w.query) q *= 1e4f;
  const Result got = w.Attend();
  for (float x : got.out) EXPECT_TRUE(std::isfinite(x));
  for (float x : got.lse) EXPECT_TRUE(std::isfinite(x));
}

// The absorbed form against attention as the model's definition has it: keys W_UK c beside the shared rope key, values
// W_UV c, each head on its own, all in double.
TEST(MlaPagedDecodeTest, AbsorbedFormEqualsAttentionOverProjectedKeysAndValues) {
  constexpr int32_t kNope = 24, kRope = 16, kLatent = 64, kValue = 20, kHeads = 6;
  constexpr int64_t kTokens = 150;
  for (const KvFormat format : kAllFormats) {
    World w({.format = format,
             .q_heads = kHeads,
             .latent_dim = kLatent,
             .rope_dim = kRope,
             .shares = {{0, kTokens}},
             .seed = 8});
    w.params.scale = 1.0f / std::sqrt(static_cast<float>(kNope + kRope));
    std::mt19937_64 random(9);
    const std::vector<float> up_k = RandomFloats(kHeads * kNope * kLatent, random, 0.125f);     // [head, nope, latent]
    const std::vector<float> up_v = RandomFloats(kHeads * kValue * kLatent, random, 0.125f);    // [head, value, latent]
    const std::vector<float> query = RandomFloats(kTokens * kHeads * (kNope + kRope), random);  // nope, then rope
    const auto project = [&](const std::vector<float>& up, int32_t dim, int32_t head, int32_t d, const double* x) {
      double sum = 0;
      for (int32_t l = 0; l < kLatent; ++l) sum += double{up[(head * dim + d) * kLatent + l]} * x[l];
      return sum;
    };
    for (int64_t row = 0; row < kTokens * kHeads; ++row) {
      const float* q = &query[row * (kNope + kRope)];
      float* absorbed = &w.query[row * (kLatent + kRope)];
      for (int32_t l = 0; l < kLatent; ++l) {
        double sum = 0;
        for (int32_t d = 0; d < kNope; ++d) sum += double{up_k[(row % kHeads * kNope + d) * kLatent + l]} * q[d];
        absorbed[l] = static_cast<float>(sum);
      }
      std::copy_n(q + kNope, kRope, absorbed + kLatent);
    }
    const Result got = w.Attend();
    std::vector<std::vector<double>> stored;
    for (int64_t t = 0; t < kTokens; ++t) {
      std::vector<float> row(kLatent + kRope);
      DequantizeRow(w.Row(0, t, 1), w.Descales(0, t, 1), w.layout, row);
      stored.emplace_back(row.begin(), row.end());
    }
    for (int32_t head = 0; head < kHeads; ++head) {
      std::vector<double> keys, values;  // [token, nope], [token, value]
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int32_t d = 0; d < kNope; ++d) keys.push_back(project(up_k, kNope, head, d, stored[t].data()));
        for (int32_t d = 0; d < kValue; ++d) values.push_back(project(up_v, kValue, head, d, stored[t].data()));
      }
      for (int64_t i = 0; i < kTokens; ++i) {
        const int64_t row = i * kHeads + head;
        const float* q = &query[row * (kNope + kRope)];
        double sum = 0;
        std::vector<double> want(kValue, 0.0);
        for (int64_t t = 0; t <= i; ++t) {
          double score = 0;
          for (int32_t d = 0; d < kNope; ++d) score += q[d] * keys[t * kNope + d];
          for (int32_t d = 0; d < kRope; ++d) score += q[kNope + d] * stored[t][kLatent + d];
          const double weight = std::exp(score * w.params.scale);
          sum += weight;
          for (int32_t d = 0; d < kValue; ++d) want[d] += weight * values[t * kValue + d];
        }
        const std::vector<double> latent(&got.out[row * kLatent], &got.out[row * kLatent] + kLatent);
        for (int32_t d = 0; d < kValue; ++d) {
          ASSERT_NEAR(project(up_v, kValue, head, d, latent.data()), want[d] / sum, 1e-5) << "row " << row;
        }
        ASSERT_NEAR(got.lse[row], std::log(sum), 1e-5 * (1 + std::abs(got.lse[row]))) << "row " << row;
      }
    }
  }
}

#ifdef KVMESH_HAVE_HIGHWAY
TEST(MlaInstructionSetTest, AllAgreeAndThoseWithFusedMultiplyAddGiveTheSameBits) {
  // On the given instruction set, or on the best one for 0.
  const auto attend_on = [](int64_t target, const World& w) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    Result out(w.rows * w.c.latent_dim, w.rows);
    cpu::MlaPagedDecode(w.query, w.sequences, 1, w.params, w.pool, out.out, out.lse);
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return out;
  };
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const World w({.format = kAllFormats[seed % 6],
                   .q_heads = static_cast<int32_t>(1 + seed % 7),
                   .latent_dim = seed % 2 ? 64 : 40,
                   .shares = {{130, 1}, {0, 80}},
                   .seed = seed});
    SCOPED_TRACE(w.c.Describe());
    const Result best = attend_on(0, w);
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
      SCOPED_TRACE(hwy::TargetName(target));
      const Result got = attend_on(target, w);
      if (target == HWY_AVX3 || target == HWY_AVX2) {
        ASSERT_TRUE(SameBits(best, got));
      }
      ExpectNear(best.out, got.out, 2e-5f);
      ExpectNear(best.lse, got.lse, 2e-5f);
    }
  }
}
#endif

// A query's bits depend on its position and the rows only.
class MlaRowInvarianceTest : public testing::TestWithParam<int> {
 protected:
  static constexpr int64_t kTokens = 200;

  MlaRowInvarianceTest() : world_(MakeCase(GetParam())) {}

  static Case MakeCase(int seed) {
    std::mt19937_64 random(seed);
    const int32_t latent_dims[] = {16, 40, 64, 128};
    return {.format = kAllFormats[random() % 6],
            .q_heads = static_cast<int32_t>(1 + random() % 9),
            .block_tokens = static_cast<int32_t>(1 + random() % 40),
            .latent_dim = latent_dims[random() % 4],
            .rope_dim = random() % 2 ? 8 : 16,
            .shares = {{0, kTokens}},
            .seed = static_cast<uint64_t>(seed)};
  }

  World world_;
};

TEST_P(MlaRowInvarianceTest, ChunksBatchesAndThreadsEqualPrefill) {
  SCOPED_TRACE(world_.c.Describe());
  const Result all = world_.Attend();
  ExpectChunksEqual(world_, all, kTokens, {1, 2, 3, 16, 33, 64, 100});
  ExpectBatchesEqual(world_, all, kTokens, static_cast<uint64_t>(GetParam()));
  ExpectThreadsEqual(world_, all, kTokens);
}

TEST_P(MlaRowInvarianceTest, BlockSizeAndPlacementDoNotMatter) {
  SCOPED_TRACE(world_.c.Describe());
  const Result all = world_.Attend();
  for (int32_t block_tokens : {1, 16, 64, 512}) {
    Case c = world_.c;
    c.block_tokens = block_tokens;
    c.seed += 500;
    World other(c);
    for (int64_t t = 0; t < kTokens; ++t) {
      std::memcpy(other.Row(0, t, 1), world_.Row(0, t, 1), world_.layout.token_stride);
      std::memcpy(other.Descales(0, t, 1), world_.Descales(0, t, 1), world_.DescaleBytes());
    }
    ASSERT_TRUE(SameBits(other.Attend(other.sequences, world_.query), all)) << "block_tokens " << block_tokens;
  }
}

TEST_P(MlaRowInvarianceTest, LaterRowsNeverShowAndVisibleNanDoes) {
  SCOPED_TRACE(world_.c.Describe());
  const Result all = world_.Attend();
  for (int64_t poisoned = kTokens - 1; poisoned >= 0; poisoned -= 23) {
    std::memset(world_.Row(0, poisoned, 1), 0xff, world_.layout.token_stride);
    std::memset(world_.Descales(0, poisoned, 1), 0xff, world_.DescaleBytes());
    const Result got = world_.Attend();
    ASSERT_TRUE(SameBits(got.Slice(0, poisoned, kTokens), all.Slice(0, poisoned, kTokens))) << "NaN at " << poisoned;
    const Result shown = got.Slice(poisoned, 1, kTokens);
    for (float x : shown.out) ASSERT_TRUE(std::isnan(x)) << "NaN at " << poisoned;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, MlaRowInvarianceTest, testing::Range(1, 13));

TEST(ConcatAndCacheMlaTest, EqualsReferenceBitForBitAndTouchesNothingElse) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const BlockLayout layout =
        CanonicalMlaLayout(kAllFormats[seed % 6], static_cast<int32_t>(1 + random() % 3),
                           static_cast<int32_t>(1 + random() % 20), static_cast<int32_t>(8 * (1 + random() % 16)), 16);
    BytePool want(layout, 5, 64, random);
    BytePool got(want);
    const std::vector<int64_t> slots = RandomSlots(5 * layout.block_tokens, random);
    std::vector<float> latent = RandomFloats(slots.size() * layout.latent_dim, random, 1e4f);
    const std::vector<float> rope_key = RandomFloats(slots.size() * 16, random);
    latent[random() % latent.size()] = std::numeric_limits<float>::quiet_NaN();
    latent[random() % latent.size()] = std::numeric_limits<float>::infinity();
    const int32_t layer = static_cast<int32_t>(random() % layout.layers);
    reference::ConcatAndCacheMla(latent, rope_key, slots, layer, want.view);
    const size_t half = slots.size() / 2;  // any split gives the same bytes
    ConcatAndCacheMla(std::span(latent).first(half * layout.latent_dim), std::span(rope_key).first(half * 16),
                      std::span(slots).first(half), layer, got.view);
    ConcatAndCacheMla(std::span(latent).subspan(half * layout.latent_dim), std::span(rope_key).subspan(half * 16),
                      std::span(slots).subspan(half), layer, got.view);
    ASSERT_EQ(want.bytes, got.bytes);
  }
}

TEST(ConcatAndCacheMlaTest, ARowIsTheLatentThenTheRopeKey) {
  const BlockLayout layout = CanonicalMlaLayout(KvFormat::kF32, 1, 4, 8, 8);
  std::vector<std::byte> bytes(layout.block_bytes * 2);
  const KvPoolView pool{bytes.data(), layout.block_bytes, 2, layout};
  std::mt19937_64 random(1);
  const std::vector<float> latent = RandomFloats(8, random), rope_key = RandomFloats(8, random);
  ConcatAndCacheMla(latent, rope_key, std::vector<int64_t>{6}, 0, pool);
  EXPECT_EQ(std::memcmp(pool.At(1, 0, 0, 0, 2), latent.data(), 32), 0);
  EXPECT_EQ(std::memcmp(pool.At(1, 0, 0, 0, 2) + 32, rope_key.data(), 32), 0);
}

TEST(ConcatAndCacheMlaTest, BlocksBeyondFourGibibytesWork) {
  constexpr size_t kBytes = size_t{5} << 30;
  const FarMemory memory(kBytes);
  if (memory.base() == nullptr) GTEST_SKIP() << "no address space for a pool of 5 GiB";
  const World near({.block_tokens = 16, .shares = {{0, 60}}, .seed = 2});
  World far({.block_tokens = 16, .shares = {{0, 60}}, .seed = 2});
  const BlockLayout& layout = near.layout;
  far.pool = {memory.base(), layout.block_bytes, static_cast<int64_t>(kBytes) / layout.block_bytes, layout};
  far.tables[0] = memory.Table(layout);
  far.sequences[0].block_table = far.tables[0];
  std::mt19937_64 random(3);
  const std::vector<float> latent = RandomFloats(60 * 64, random), rope_key = RandomFloats(60 * 16, random);
  for (const World* w : {&near, static_cast<const World*>(&far)}) {
    std::vector<int64_t> mapping;
    for (int64_t t = 0; t < 60; ++t) mapping.push_back(int64_t{w->tables[0][t / 16]} * 16 + t % 16);
    ConcatAndCacheMla(latent, rope_key, mapping, 1, w->pool);
  }
  EXPECT_TRUE(SameBits(near.Attend(), far.Attend()));
}

TEST(MlaDeathTest, BrokenRequirementsAbort) {
  World w({.shares = {{30, 2}}, .seed = 10});
  std::vector<float> out(w.rows * 64);
  const auto attend = [&](const MlaParams& params, const KvPoolView& pool, std::span<float> to) {
    MlaPagedDecode(w.query, w.sequences, 0, params, pool, to);
  };
  EXPECT_DEATH(attend({.q_heads = 0, .scale = 1}, w.pool, out), "q_heads");
  EXPECT_DEATH(attend(w.params, w.pool, std::span(out).first(3)), "query and out");
  KvPoolView heads = w.pool;
  heads.layout = CanonicalLayout(KvFormat::kF32, 1, 1, 16, 80);
  EXPECT_DEATH(attend(w.params, heads, out), "layout");
  EXPECT_DEATH(ConcatAndCacheMla({}, {}, {}, 0, heads), "layout");
  const std::vector<float> latent(64), rope_key(16);
  EXPECT_DEATH(ConcatAndCacheMla(latent, rope_key, std::vector<int64_t>{w.pool.slots * 16}, 0, w.pool), "slot outside");
  EXPECT_DEATH(ConcatAndCacheMla(latent, latent, std::vector<int64_t>{0}, 0, w.pool), "latent and rope_key");
  w.tables[0].back() = 1000;
  EXPECT_DEATH(attend(w.params, w.pool, out), "block id outside");
  w.sequences[0].block_table = w.sequences[0].block_table.first(1);
  EXPECT_DEATH(attend(w.params, w.pool, out), "block table too short");
}

}  // namespace
}  // namespace kvmesh
