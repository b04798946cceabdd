#include "kernels/paged_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/reference/reference.h"
#include "random_pool.h"

namespace kvmesh {
namespace {

struct Share {
  int64_t first_position;
  int64_t queries;
};

struct Case {
  KvFormat format = KvFormat::kF32;
  int32_t kv_heads = 1;
  int32_t group = 1;
  int32_t block_tokens = 16;
  int32_t head_dim = 64;
  int64_t window = 0;
  float soft_cap = 0;
  std::vector<Share> shares;
  uint64_t seed = 0;

  std::string Describe() const {
    std::string out = "seed=" + std::to_string(seed) + " format=" + std::to_string(static_cast<uint32_t>(format)) +
                      " kv_heads=" + std::to_string(kv_heads) + " group=" + std::to_string(group) +
                      " block_tokens=" + std::to_string(block_tokens) + " head_dim=" + std::to_string(head_dim) +
                      " window=" + std::to_string(window) + " soft_cap=" + std::to_string(soft_cap) + " shares=";
    for (const Share& s : shares) out += std::to_string(s.first_position) + "+" + std::to_string(s.queries) + " ";
    return out;
  }
};

// A case in memory: pool, sequences, queries.
struct World {
  explicit World(const Case& c)
      : layers(2),
        pool(CanonicalLayout(c.format, layers, c.kv_heads, c.block_tokens, c.head_dim), Slots(c), c.seed),
        params{.q_heads = c.kv_heads * c.group,
               .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
               .window = c.window,
               .soft_cap = c.soft_cap} {
    for (const Share& s : c.shares)
      tables.push_back(pool.AddSequence(std::max<int64_t>(s.first_position + s.queries, 0)));
    for (size_t i = 0; i < c.shares.size(); ++i) {
      sequences.push_back({tables[i], c.shares[i].first_position, c.shares[i].queries});
      rows += static_cast<size_t>(c.shares[i].queries) * params.q_heads;
    }
    query = RandomFloats(rows * c.head_dim, pool.random());
  }
  static int64_t Slots(const Case& c) {
    int64_t slots = 3;
    for (const Share& s : c.shares)
      slots += BlocksFor(std::max<int64_t>(s.first_position + s.queries, 0), c.block_tokens);
    return slots;
  }

  int32_t layers;
  RandomPool pool;
  AttentionParams params;
  std::vector<std::vector<uint32_t>> tables;
  std::vector<AttentionSequence> sequences;
  size_t rows = 0;
  std::vector<float> query;
};

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
  // The reference reads the stored values too, so that the format costs no accuracy here.
  ExpectNear(want, got, 1e-5f);
  ExpectNear(want_lse, got_lse, 1e-5f);
}

TEST(PagedAttentionTest, MatchesReferenceAtRandomShapes) {
  const int32_t block_tokens[] = {1, 8, 16, 64, 100};
  const int32_t head_dims[] = {8, 16, 24, 32, 64, 80, 96, 128, 256};
  const int64_t windows[] = {0, 0, 1, 2, 17, 64, 100, 100000};
  const KvFormat formats[] = {KvFormat::kF32, KvFormat::kF16, KvFormat::kBf16};
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](const auto& from) { return from[random() % std::size(from)]; };
    Case c{.format = pick(formats),
           .kv_heads = static_cast<int32_t>(1 + random() % 3),
           .group = static_cast<int32_t>(1 + random() % 16),
           .block_tokens = pick(block_tokens),
           .head_dim = pick(head_dims),
           .window = pick(windows),
           .soft_cap = random() % 3 == 0 ? 5.0f : 0.0f,
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

}  // namespace
}  // namespace kvmesh
