#include "kernels/cuda/plain_attention_body.h"

#include <gtest/gtest.h>

#include <cstring>

#include "attention_on_host.h"
#include "kernels/mla.h"

namespace kvmesh::cuda {
namespace {

template <int kLaneElements>
Results Attend(HostCall& call, uint64_t seed) {
  call.Run(
      kPlainRows, kPlainRows, kPlainThreads, kPlainThreads, PlainSharedBytes(call.args.pool.layout), seed,
      [](Simulated& m, const AttentionArgs& args) { PlainAttentionBody<true, kLaneElements>(m, args); },
      [](Simulated& m, const AttentionArgs& args) { PlainAttentionBody<false, kLaneElements>(m, args); });
  return call.results;
}

void Check(const Case& c) {
  SCOPED_TRACE(c.Describe());
  World w(c);
  std::vector<float> want(w.query.size()), want_lse(w.rows);
  reference::PagedAttention(w.query, w.sequences, 1, w.params, w.pool.view(), want, want_lse);
  HostCall call(w.sequences, w.query, w.params, 1, w.pool.view(), c.head_dim);
  const Results got = Attend<8>(call, c.seed);
  ExpectNear(want, got.out, 1e-5f);
  ExpectNear(want_lse, got.lse, 1e-5f);
}

constexpr KvFormat kFormats[] = {KvFormat::kF32,     KvFormat::kF16,  KvFormat::kBf16,
                                 KvFormat::kFp8E4m3, KvFormat::kInt8, KvFormat::kInt4};

TEST(PlainAttentionBodyTest, MatchesReferenceAtRandomShapes) {
  const CaseLimits limits{.block_tokens = {1, 8, 16, 64},
                          .head_dims = {8, 40, 64, 80, 96, 128, 256},
                          .windows = {0, 0, 1, 17, 100, 100000},
                          .kv_heads = 2,
                          .group = 8,
                          .shares = 3,
                          .positions = 150,
                          .queries = 24};
  for (uint64_t seed = 1; seed <= 18; ++seed) {
    Check(RandomCase(seed, kFormats[seed % std::size(kFormats)], limits));
    if (HasFatalFailure()) return;
  }
}

TEST(PlainAttentionBodyTest, SpansMergeToTheWhole) {
  for (int64_t window : {0, 600, 1100}) {
    Check({.group = 2,
           .head_dim = 16,
           .window = window,
           .sinks = window == 600,
           .shares = {{1023, 1}, {1300, 3}, {511, 2}, {0, 0}},
           .seed = 77});
    if (HasFatalFailure()) return;
  }
}

TEST(PlainAttentionBodyTest, MlaMatchesReference) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const BlockLayout layout = CanonicalMlaLayout(kFormats[seed % 6], 2, 16, seed == 1 ? 512 : 64, seed == 1 ? 64 : 16);
    std::vector<std::byte> bytes(static_cast<size_t>(layout.block_bytes * 8), std::byte{0xff});
    const KvPoolView pool = {bytes.data(), layout.block_bytes, 8, layout};
    const std::vector<uint32_t> table = {5, 0, 3, 7};
    std::vector<int64_t> slots;
    for (int64_t t = 0; t < 50; ++t) slots.push_back(table[t / 16] * 16 + t % 16);
    reference::ConcatAndCacheMla(RandomFloats(50 * layout.latent_dim, random),
                                 RandomFloats(50 * (layout.head_dim - layout.latent_dim), random), slots, 1, pool);
    const std::vector<AttentionSequence> sequences = {{table, 40, 1}, {table, 27, 20}, {table, -1, 2}, {table, 47, 3}};
    const MlaParams params = {.q_heads = 5, .scale = 0.1f};
    const size_t rows = 26 * 5;
    const std::vector<float> query = RandomFloats(rows * layout.head_dim, random);
    std::vector<float> want(rows * layout.latent_dim), want_lse(rows);
    reference::MlaPagedDecode(query, sequences, 1, params, pool, want, want_lse);
    HostCall call(sequences, query, {.q_heads = params.q_heads, .scale = params.scale}, 1, pool, layout.latent_dim);
    const Results got = Attend<20>(call, seed);
    ExpectNear(want, got.out, 1e-5f);
    ExpectNear(want_lse, got.lse, 1e-5f);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvmesh::cuda
