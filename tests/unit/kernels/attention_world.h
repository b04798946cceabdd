// A call of the attention kernels, drawn from a seed.
#ifndef KVMESH_TESTS_UNIT_KERNELS_ATTENTION_WORLD_H_
#define KVMESH_TESTS_UNIT_KERNELS_ATTENTION_WORLD_H_

#include <cmath>
#include <string>
#include <vector>

#include "attention_result.h"
#include "kernels/attention_parts.h"
#include "random_pool.h"

namespace kvmesh {

// What a call is drawn from.
struct Case {
  KvFormat format = KvFormat::kF32;
  int32_t kv_heads = 1;
  int32_t group = 1;
  int32_t block_tokens = 16;
  int32_t head_dim = 64;
  int64_t window = 0;
  float soft_cap = 0;
  bool sinks = false;
  std::vector<Share> shares;
  uint64_t seed = 0;

  std::string Describe() const {
    std::string out = "seed=" + std::to_string(seed) + " format=" + std::to_string(static_cast<uint32_t>(format)) +
                      " kv_heads=" + std::to_string(kv_heads) + " group=" + std::to_string(group) +
                      " block_tokens=" + std::to_string(block_tokens) + " head_dim=" + std::to_string(head_dim) +
                      " window=" + std::to_string(window) + " soft_cap=" + std::to_string(soft_cap) +
                      " sinks=" + std::to_string(sinks) + " shares=";
    for (const Share& s : shares) out += std::to_string(s.first_position) + "+" + std::to_string(s.queries) + " ";
    return out;
  }
};

// What RandomCase draws from; numbers from 1 up to these, positions from -2 on.
struct CaseLimits {
  std::vector<int32_t> block_tokens;
  std::vector<int32_t> head_dims;
  std::vector<int64_t> windows;
  int32_t kv_heads = 1;
  int32_t group = 1;
  int64_t shares = 1;
  int64_t positions = 1;
  int64_t queries = 1;
};

// A case in `format`, the same for the same seed; a third each have a soft cap and sinks.
inline Case RandomCase(uint64_t seed, KvFormat format, const CaseLimits& limits) {
  std::mt19937_64 random(seed);
  const auto pick = [&](const auto& from) { return from[random() % from.size()]; };
  const auto below = [&](int64_t limit) { return static_cast<int64_t>(random() % static_cast<uint64_t>(limit)); };
  Case c{.format = format, .shares = {}, .seed = seed};
  c.kv_heads = static_cast<int32_t>(1 + below(limits.kv_heads));
  c.group = static_cast<int32_t>(1 + below(limits.group));
  c.block_tokens = pick(limits.block_tokens);
  c.head_dim = pick(limits.head_dims);
  c.window = pick(limits.windows);
  c.soft_cap = below(3) == 0 ? 5.0f : 0.0f;
  c.sinks = below(3) == 0;
  for (int64_t n = 1 + below(limits.shares); n > 0; --n) {
    const int64_t first = below(limits.positions) - 2;
    c.shares.push_back({first, below(3) == 0 ? 1 : below(limits.queries)});
  }
  return c;
}

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
    if (!c.sinks) return;
    sinks = RandomFloats(static_cast<size_t>(params.q_heads), pool.random());
    params.sinks = sinks;
  }
  static int64_t Slots(const Case& c) {
    int64_t slots = 3;
    for (const Share& s : c.shares)
      slots += BlocksFor(std::max<int64_t>(s.first_position + s.queries, 0), c.block_tokens);
    return slots;
  }

  // By `variant`, in layer 1.
  Result Attend(KernelVariant variant) const { return Attend(variant, sequences, query); }
  Result Attend(KernelVariant variant, std::span<const AttentionSequence> of, std::span<const float> with) const {
    return Attend(variant, of, with, pool.view());
  }
  Result Attend(KernelVariant variant, std::span<const AttentionSequence> of, std::span<const float> with,
                const KvPoolView& from) const {
    Result out(with.size(), with.size() / static_cast<size_t>(from.layout.head_dim));
    AttendWith(variant, of, {with, 1, params, from, out.out, out.lse});
    return out;
  }

  int32_t layers;
  RandomPool pool;
  AttentionParams params;
  std::vector<std::vector<uint32_t>> tables;
  std::vector<AttentionSequence> sequences;
  size_t rows = 0;
  std::vector<float> query;
  std::vector<float> sinks;
};

// Rounding of a variant on top of the format's own, which the reference shares: it reads the stored values too.
inline float Tolerance(KernelVariant variant, KvFormat format) {
  if (variant != KernelVariant::kAvx512) return 1e-5f;
  return format == KvFormat::kBf16 ? 1e-4f : format == KvFormat::kInt8 ? 1e-3f : 1e-5f;
}

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_KERNELS_ATTENTION_WORLD_H_
