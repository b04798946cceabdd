// A query's bits depend on its position and its keys only, whatever stands beside it in the call.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "attention_world.h"
#include "invariance.h"
#include "kernels/paged_attention.h"

namespace kvmesh {
namespace {

// One sequence with a query at each position, by one variant.
struct One {
  One(const Case& c, KernelVariant variant) : world(c), variant(variant) {}

  Result Attend(std::span<const AttentionSequence> sequences, std::span<const float> query) const {
    return world.Attend(variant, sequences, query);
  }
  std::span<const float> Queries(int64_t first, int64_t count) const {
    const size_t row = world.query.size() / static_cast<size_t>(world.sequences[0].queries);
    return std::span<const float>(world.query).subspan((first - world.sequences[0].first_position) * row, count * row);
  }
  std::span<const uint32_t> table() const { return world.tables[0]; }

  World world;
  KernelVariant variant;
};

// All queries of `kTokens` in one call are what every other way must match.
class RowInvarianceTest : public testing::TestWithParam<std::tuple<int, KernelVariant>> {
 protected:
  static constexpr int64_t kTokens = 330;

  RowInvarianceTest()
      : seed_(std::get<0>(GetParam())),
        case_(MakeCase(seed_)),
        one_(case_, std::get<1>(GetParam())),
        world_(one_.world),
        trace_(__FILE__, __LINE__, case_.Describe() + " " + std::string(KernelVariantName(one_.variant))) {}

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
            .sinks = random() % 4 == 0,
            .shares = {{0, kTokens}},
            .seed = static_cast<uint64_t>(seed)};
  }

  Result Attend() const { return AttendPart(one_, 0, kTokens); }

  const int seed_;
  const Case case_;
  One one_;
  World& world_;
  testing::ScopedTrace trace_;
};

TEST_P(RowInvarianceTest, DecodeEqualsPrefill) { ExpectChunksEqual(one_, Attend(), kTokens, {1}); }

TEST_P(RowInvarianceTest, ChunksEqualPrefill) {
  ExpectChunksEqual(one_, Attend(), kTokens, {2, 3, 7, 16, 33, 64, 100, 256});
}

TEST_P(RowInvarianceTest, BatchesEqualPrefill) {
  ExpectBatchesEqual(one_, Attend(), kTokens, static_cast<uint64_t>(seed_));
}

TEST_P(RowInvarianceTest, ThreadsEqualPrefill) { ExpectThreadsEqual(one_, Attend(), kTokens); }

TEST_P(RowInvarianceTest, BlockSizeAndPlacementDoNotMatter) {
  const Result all = Attend();
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
    ASSERT_TRUE(SameBits(world_.Attend(one_.variant, {&sequence, 1}, world_.query, other.view()), all))
        << "block_tokens " << block_tokens;
  }
}

TEST_P(RowInvarianceTest, LaterKeysNeverShow) {
  const Result all = Attend();
  std::mt19937_64 random(static_cast<uint64_t>(seed_));
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
    ASSERT_TRUE(SameBits(Attend().Slice(0, poisoned, kTokens), all.Slice(0, poisoned, kTokens)))
        << "NaN at " << poisoned;
  }
}

// The reference takes row by row anyhow.
std::vector<KernelVariant> FastVariants() {
  std::vector<KernelVariant> out(UsableVariants().begin(), UsableVariants().end());
  std::erase(out, KernelVariant::kReference);
  return out;
}

INSTANTIATE_TEST_SUITE_P(Seeds, RowInvarianceTest,
                         testing::Combine(testing::Range(1, 25), testing::ValuesIn(FastVariants())));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RowInvarianceTest);

// Queries on both sides of where a span of keys ends.
TEST(RowInvarianceOverSpansTest, DecodeAndChunksEqualPrefill) {
  constexpr int64_t kFirst = 2 * kSpanTokens - 70, kQueries = 150;
  for (const KernelVariant variant : UsableVariants()) {
    for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8}) {
      if (variant == KernelVariant::kReference && format != KvFormat::kBf16) continue;
      const One one({.format = format, .group = 2, .window = 3000, .shares = {{kFirst, kQueries}}, .seed = 1}, variant);
      const Result all = AttendPart(one, kFirst, kQueries);
      for (const int64_t chunk : {1, 7, 100}) {
        for (int64_t i = 0; i < kQueries; i += chunk * 3) {
          const int64_t count = std::min(chunk, kQueries - i);
          ASSERT_TRUE(SameBits(AttendPart(one, kFirst + i, count), all.Slice(i, count, kQueries)))
              << "queries " << i << "+" << count << " " << KernelVariantName(variant);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvmesh
