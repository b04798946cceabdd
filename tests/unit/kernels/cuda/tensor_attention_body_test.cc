#include "kernels/cuda/tensor_attention_body.h"

#include <gtest/gtest.h>

#include <cstring>

#include "attention_on_host.h"

namespace kvmesh::cuda {
namespace {

template <KvFormat kFormat, int kHeadDim>
Results Attend(const World& w, const KvPoolView& pool, uint64_t seed, bool aligned) {
  using Split = TensorShape<kFormat, kHeadDim, true>;
  using Whole = TensorShape<kFormat, kHeadDim, false>;
  HostCall call(w.sequences, w.query, w.params, 1, pool, pool.layout.head_dim);
  call.args.aligned = aligned;
  call.Run(
      Split::kRows, Whole::kRows, Split::kThreads, Whole::kThreads, std::max(Split::kSharedBytes, Whole::kSharedBytes),
      seed, [](Simulated& m, const AttentionArgs& args) { TensorAttentionBody<Split>(m, args); },
      [](Simulated& m, const AttentionArgs& args) { TensorAttentionBody<Whole>(m, args); });
  return call.results;
}

template <KvFormat kFormat, int kHeadDim>
void Check(Case c, bool aligned = false) {
  c.format = kFormat;
  SCOPED_TRACE(c.Describe());
  World w(c);
  std::vector<float> want(w.query.size()), want_lse(w.rows);
  reference::PagedAttention(w.query, w.sequences, 1, w.params, w.pool.view(), want, want_lse);
  const Results got = Attend<kFormat, kHeadDim>(w, w.pool.view(), c.seed, aligned);
  ExpectNear(want, got.out, 1e-2f);
  ExpectNear(want_lse, got.lse, 1e-3f);
}

template <KvFormat kFormat, int kHeadDim>
void CheckShapes(uint64_t seed) {
  Check<kFormat, kHeadDim>(
      {.kv_heads = 2, .group = 4, .head_dim = kHeadDim, .shares = {{90, 1}, {0, 20}, {0, 0}}, .seed = seed},
      kFormat == KvFormat::kBf16);
  Check<kFormat, kHeadDim>({.group = 3,
                            .block_tokens = 1,
                            .head_dim = kHeadDim - 8,
                            .window = 33,
                            .soft_cap = 5,
                            .sinks = true,
                            .shares = {{70, 18}, {-2, 4}},
                            .seed = seed + 1});
}

TEST(TensorAttentionBodyTest, MatchesReferenceWithBf16) {
  CheckShapes<KvFormat::kBf16, 64>(10);
  CheckShapes<KvFormat::kBf16, 80>(20);
  CheckShapes<KvFormat::kBf16, 128>(30);
  CheckShapes<KvFormat::kBf16, 256>(40);
}
TEST(TensorAttentionBodyTest, MatchesReferenceWithF16) { CheckShapes<KvFormat::kF16, 96>(50); }
TEST(TensorAttentionBodyTest, MatchesReferenceWithFp8) {
  CheckShapes<KvFormat::kFp8E4m3, 128>(60);
  CheckShapes<KvFormat::kFp8E4m3, 80>(70);
}
TEST(TensorAttentionBodyTest, MatchesReferenceWithInt8) {
  CheckShapes<KvFormat::kInt8, 64>(80);
  CheckShapes<KvFormat::kInt8, 256>(90);
}

TEST(TensorAttentionBodyTest, SpansMergeToTheWhole) {
  Check<KvFormat::kBf16, 64>({.group = 2, .head_dim = 64, .shares = {{1023, 1}, {1300, 3}, {511, 2}}, .seed = 100});
  Check<KvFormat::kInt8, 64>(
      {.group = 2, .head_dim = 64, .window = 600, .sinks = true, .shares = {{1023, 2}, {1300, 1}}, .seed = 101});
}

TEST(TensorAttentionBodyTest, ResultDependsOnPositionAndKeysAlone) {
  const Case c{.format = KvFormat::kBf16, .group = 2, .head_dim = 64, .shares = {{40, 100}}, .seed = 110};
  World w(c);
  const Results all = Attend<KvFormat::kBf16, 64>(w, w.pool.view(), 1, true);
  // The same queries as two chunks beside a short one.
  const std::vector<AttentionSequence> whole = w.sequences;
  w.sequences = {{whole[0].block_table, 40, 33}, {whole[0].block_table, 73, 67}};
  const Results chunks = Attend<KvFormat::kBf16, 64>(w, w.pool.view(), 2, false);
  EXPECT_EQ(std::memcmp(all.out.data(), chunks.out.data(), all.out.size() * sizeof(float)), 0);
  EXPECT_EQ(std::memcmp(all.lse.data(), chunks.lse.data(), all.lse.size() * sizeof(float)), 0);
}

TEST(TensorAttentionBodyTest, NanReachesOnlyTheRowsThatSeeIt) {
  for (const bool split : {false, true}) {
    World w({.format = KvFormat::kBf16, .group = 2, .head_dim = 64, .shares = {{60, split ? 16 : 40}}, .seed = 120});
    const KvPoolView& pool = w.pool.view();
    const uint16_t nan = 0x7fc0;
    std::memcpy(pool.At(w.tables[0][70 / 16], 1, 1, 0, 70 % 16) + 6, &nan, 2);
    const Results got = Attend<KvFormat::kBf16, 64>(w, pool, 3, true);
    for (size_t i = 0; i < got.out.size(); ++i) {
      ASSERT_EQ(std::isnan(got.out[i]), i / 128 >= 10 && i % 64 == 3) << i;
    }
  }
}

TEST(TensorAttentionBodyTest, NanDescaleReachesOnlyTheRowsThatSeeIt) {
  for (const int64_t kv : {0, 1}) {
    World w({.format = KvFormat::kInt8, .group = 2, .head_dim = 64, .shares = {{60, 40}}, .seed = 130});
    const KvPoolView& pool = w.pool.view();
    const float nan = std::nanf("");
    std::memcpy(pool.base + w.tables[0][70 / 16] * pool.slot_stride + pool.layout.ScaleOffset(1, kv, 0, 70 % 16), &nan,
                sizeof(nan));
    const Results got = Attend<KvFormat::kInt8, 64>(w, pool, 4, false);
    for (size_t i = 0; i < got.out.size(); ++i) ASSERT_EQ(std::isnan(got.out[i]), i / 128 >= 10) << i;
  }
}

TEST(TensorAttentionBodyTest, StoredBytesAreReadExactly) {
  for (int byte = 0; byte < 256; ++byte) {
    float x[4];
    FourElements<KvFormat::kInt8>(static_cast<uint32_t>(byte) << 16 | 0x7f000080u, x);
    EXPECT_EQ(x[2], static_cast<float>(static_cast<int8_t>(byte)));
    EXPECT_EQ(x[0], -128.0f);
    FourElements<KvFormat::kFp8E4m3>(static_cast<uint32_t>(byte) << 24, x);
    EXPECT_EQ(BitCast<uint32_t>(x[3]), BitCast<uint32_t>(F32FromFp8(static_cast<uint8_t>(byte))));
  }
}

}  // namespace
}  // namespace kvmesh::cuda
