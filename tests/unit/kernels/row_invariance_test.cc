// A query's bits depend on its position and its keys only, whatever stands beside it in the call.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "attention_world.h"
#include "kernels/paged_attention.h"

namespace kvmesh {
namespace {

struct Result {
  std::vector<float> out;
  std::vector<float> lse;

  bool SameBits(const Result& other) const { return SameBits(out, other.out) && SameBits(lse, other.lse); }
  static bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
  }
};

// One sequence of `kTokens` tokens; all queries in one call are what every other way must match.
class RowInvarianceTest : public testing::TestWithParam<int> {
 protected:
  static constexpr int64_t kTokens = 330;

  RowInvarianceTest() : case_(MakeCase(GetParam())), world_(case_) {}

  static Case MakeCase(int seed) {
    std::mt19937_64 random(seed);
    const int32_t head_dims[] = {8, 32, 64, 80, 128};
    const int64_t windows[] = {0, 0, 1, 50, 64, 129};
    const KvFormat formats[] = {KvFormat::kF32,     KvFormat::kF16,  KvFormat::kBf16,
                                KvFormat::kFp8E4m3, KvFormat::kInt8, KvFormat::kInt4};
    return {.format = formats[seed % 6],
            .kv_heads = static_cast<int32_t>(1 + random() % 2),
            .group = static_cast<int32_t>(1 + random() % 8),
            .block_tokens = static_cast<int32_t>(1 + random() % 40),
            .head_dim = head_dims[random() % 5],
            .window = windows[random() % 6],
            .soft_cap = random() % 3 == 0 ? 3.0f : 0.0f,
            .shares = {{0, kTokens}},
            .seed = static_cast<uint64_t>(seed)};
  }

  // Attends with queries [first, first + count) of the sequence.
  Result Attend(int64_t first, int64_t count) const {
    const AttentionSequence sequence{world_.tables[0], first, count};
    return AttendAll({&sequence, 1}, Queries(first, count));
  }
  Result AttendAll(std::span<const AttentionSequence> sequences, std::span<const float> query) const {
    Result out{std::vector<float>(query.size()), std::vector<float>(query.size() / case_.head_dim)};
    PagedAttention(query, sequences, 1, world_.params, world_.pool.view(), out.out, out.lse);
    return out;
  }
  std::span<const float> Queries(int64_t first, int64_t count) const {
    const size_t row = static_cast<size_t>(world_.params.q_heads) * case_.head_dim;
    return std::span<const float>(world_.query).subspan(first * row, count * row);
  }
  // Rows [first, first + count) of `all`.
  Result Slice(const Result& all, int64_t first, int64_t count) const {
    const auto cut = [&](const std::vector<float>& from, int64_t row) {
      return std::vector<float>(from.begin() + first * row, from.begin() + (first + count) * row);
    };
    return {cut(all.out, int64_t{world_.params.q_heads} * case_.head_dim), cut(all.lse, world_.params.q_heads)};
  }

  Case case_;
  World world_;
};

TEST_P(RowInvarianceTest, DecodeEqualsPrefill) {
  SCOPED_TRACE(case_.Describe());
  const Result all = Attend(0, kTokens);
  for (int64_t i = 0; i < kTokens; ++i) ASSERT_TRUE(Attend(i, 1).SameBits(Slice(all, i, 1))) << "query " << i;
}

TEST_P(RowInvarianceTest, ChunksEqualPrefill) {
  SCOPED_TRACE(case_.Describe());
  const Result all = Attend(0, kTokens);
  for (int64_t chunk : {2, 3, 7, 16, 33, 64, 100, 256}) {
    for (int64_t i = 0; i < kTokens; i += chunk) {
      const int64_t count = std::min(chunk, kTokens - i);
      ASSERT_TRUE(Attend(i, count).SameBits(Slice(all, i, count))) << "queries " << i << "+" << count;
    }
  }
}

TEST_P(RowInvarianceTest, BatchesEqualPrefill) {
  SCOPED_TRACE(case_.Describe());
  const Result all = Attend(0, kTokens);
  std::mt19937_64 random(GetParam());
  for (int batch = 0; batch < 20; ++batch) {
    std::vector<AttentionSequence> sequences;
    std::vector<float> query;
    Result want;
    for (uint64_t n = 1 + random() % 6; n > 0; --n) {
      const int64_t first = static_cast<int64_t>(random() % kTokens);
      const int64_t count = static_cast<int64_t>(random() % std::min<uint64_t>(kTokens - first, 20));
      sequences.push_back({world_.tables[0], first, count});
      const auto part = Queries(first, count);
      query.insert(query.end(), part.begin(), part.end());
      const Result rows = Slice(all, first, count);
      want.out.insert(want.out.end(), rows.out.begin(), rows.out.end());
      want.lse.insert(want.lse.end(), rows.lse.begin(), rows.lse.end());
    }
    ASSERT_TRUE(AttendAll(sequences, query).SameBits(want)) << "batch " << batch;
  }
}

TEST_P(RowInvarianceTest, ThreadsEqualPrefill) {
  SCOPED_TRACE(case_.Describe());
  const Result all = Attend(0, kTokens);
  std::vector<std::vector<char>> same(4, std::vector<char>(kTokens, 1));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = t; i < kTokens; i += 5) same[t][i] = Attend(i, 1).SameBits(Slice(all, i, 1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& flags : same) EXPECT_EQ(std::count(flags.begin(), flags.end(), 0), 0);
}

TEST_P(RowInvarianceTest, BlockSizeAndPlacementDoNotMatter) {
  SCOPED_TRACE(case_.Describe());
  const Result all = Attend(0, kTokens);
  const BlockLayout& from = world_.pool.view().layout;
  for (int32_t block_tokens : {1, 16, 64, 512}) {
    const BlockLayout to = CanonicalLayout(from.format, from.layers, from.kv_heads, block_tokens, from.head_dim);
    RandomPool other(to, BlocksFor(kTokens, block_tokens) + 2, 99);
    const std::vector<uint32_t> table = other.AddSequence(kTokens);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int32_t kv = 0; kv < 2; ++kv) {
        for (int32_t head = 0; head < from.kv_heads; ++head) {
          const uint32_t id = world_.tables[0][t / from.block_tokens];
          const std::byte* in = world_.pool.view().base + id * from.block_bytes;
          std::byte* out = other.view().base + table[t / block_tokens] * to.block_bytes;
          std::memcpy(out + to.Offset(1, kv, head, t % block_tokens),
                      in + from.Offset(1, kv, head, t % from.block_tokens), from.token_stride);
          std::memcpy(out + to.ScaleOffset(1, kv, head, t % block_tokens),
                      in + from.ScaleOffset(1, kv, head, t % from.block_tokens), from.scale_token_stride);
        }
      }
    }
    const AttentionSequence sequence{table, 0, kTokens};
    Result got{std::vector<float>(all.out.size()), std::vector<float>(all.lse.size())};
    PagedAttention(world_.query, {&sequence, 1}, 1, world_.params, other.view(), got.out, got.lse);
    ASSERT_TRUE(got.SameBits(all)) << "block_tokens " << block_tokens;
  }
}

TEST_P(RowInvarianceTest, LaterKeysNeverShow) {
  SCOPED_TRACE(case_.Describe());
  const Result all = Attend(0, kTokens);
  std::mt19937_64 random(GetParam());
  for (int round = 0; round < 10; ++round) {  // ever earlier positions
    const int64_t poisoned = kTokens - 1 - static_cast<int64_t>(random() % (kTokens / 12)) - round * (kTokens / 12);
    const BlockLayout& layout = world_.pool.view().layout;
    const uint32_t id = world_.tables[0][poisoned / layout.block_tokens];
    for (int32_t kv = 0; kv < 2; ++kv) {
      for (int32_t head = 0; head < layout.kv_heads; ++head) {
        std::byte* block = world_.pool.view().base + id * layout.block_bytes;
        const int64_t token = poisoned % layout.block_tokens;
        std::memset(block + layout.Offset(1, kv, head, token), 0xff, layout.token_stride);
        std::memset(block + layout.ScaleOffset(1, kv, head, token), 0xff, layout.scale_token_stride);
      }
    }
    ASSERT_TRUE(Slice(Attend(0, kTokens), 0, poisoned).SameBits(Slice(all, 0, poisoned))) << "NaN at " << poisoned;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RowInvarianceTest, testing::Range(1, 25));

}  // namespace
}  // namespace kvmesh
