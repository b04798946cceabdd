#include "kernels/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/reference.h"
#include "kernels/stored_rows.h"

namespace kvmesh::reference {
namespace {

// Positions [first, last).
struct Positions {
  int64_t first;
  int64_t last;
};

// The keys that query `i` of a sequence sees.
Positions Visible(const AttentionSequence& sequence, int64_t i, const AttentionParams& params) {
  const int64_t last = std::max<int64_t>(sequence.first_position + i + 1, 0);
  return {params.window > 0 ? std::max<int64_t>(last - params.window, 0) : 0, last};
}

// K (kv 0) or V (kv 1) of one head at `positions`, as it reads from the pool: [positions, head_dim].
std::vector<float> Gather(const AttentionSequence& sequence, Positions positions, int32_t layer, int64_t kv,
                          int32_t kv_head, const KvPoolView& pool) {
  const BlockLayout& layout = pool.layout;
  std::vector<float> out(static_cast<size_t>(positions.last - positions.first) * layout.head_dim);
  for (int64_t t = positions.first; t < positions.last; ++t) {
    const std::byte* block = pool.base + sequence.block_table[t / layout.block_tokens] * pool.slot_stride;
    DequantizeRows(RowsOfTokens(layout, block, layer, kv, kv_head, t % layout.block_tokens, 1), layout,
                   &out[(t - positions.first) * layout.head_dim]);
  }
  return out;
}

// One query of one head, whose sink is -infinity where it has none, against `count` keys. Returns the natural
// log-sum-exp.
double AttendRow(const float* query, const float* keys, const float* values, int64_t count, int64_t head_dim,
                 const AttentionParams& params, double sink, float* out) {
  std::vector<double> scores;
  double highest = sink;
  for (int64_t t = 0; t < count; ++t) {
    double score = 0;
    for (int64_t d = 0; d < head_dim; ++d) score += double{query[d]} * keys[t * head_dim + d];
    score *= params.scale;
    if (params.soft_cap > 0) score = params.soft_cap * std::tanh(score / params.soft_cap);
    scores.push_back(score);
    highest = std::max(highest, score);
  }
  const bool empty = highest == -std::numeric_limits<double>::infinity();
  double sum = empty ? 0 : std::exp(sink - highest);
  std::vector<double> acc(head_dim, 0.0);
  for (int64_t t = 0; t < count; ++t) {
    const double weight = std::exp(scores[t] - highest);
    sum += weight;
    for (int64_t d = 0; d < head_dim; ++d) acc[d] += weight * values[t * head_dim + d];
  }
  for (int64_t d = 0; d < head_dim; ++d) out[d] = count > 0 ? static_cast<float>(acc[d] / sum) : 0.0f;
  return empty ? highest : highest + std::log(sum);
}

}  // namespace

void AttendRows(const AttentionCall& call, const AttentionRows& rows, KeyRange keys, RowStates out) {
  const int64_t head_dim = call.pool.layout.head_dim;
  const int32_t group = call.group();
  const auto seen = [&](int r) {
    const Positions all = Visible(rows.sequence, (rows.first + r) / group, call.params);
    const int64_t first = std::max(all.first, keys.begin);
    return Positions{first, std::max(std::min(all.last, keys.end), first)};
  };
  const Positions all = {seen(0).first, std::max(seen(rows.count - 1).last, seen(0).first)};
  for (int32_t i = 0; i < rows.kv_heads; ++i) {
    const std::vector<float> k = Gather(rows.sequence, all, call.layer, 0, rows.kv_head + i, call.pool);
    const std::vector<float> v = Gather(rows.sequence, all, call.layer, 1, rows.kv_head + i, call.pool);
    for (int r = 0; r < rows.count; ++r) {
      const Positions range = seen(r);
      const int row = i * rows.count + r;
      const int64_t from = (range.first - all.first) * head_dim;
      const double lse = AttendRow(&call.query[rows.Index(row, call.params, group) * head_dim], k.data() + from,
                                   v.data() + from, range.last - range.first, head_dim, call.params,
                                   -std::numeric_limits<double>::infinity(), &out.out[row * head_dim]);
      out.lse[row] = static_cast<float>(lse);
    }
  }
}

void PagedAttention(std::span<const float> query, std::span<const AttentionSequence> sequences, int32_t layer,
                    const AttentionParams& params, const KvPoolView& pool, std::span<float> out, std::span<float> lse) {
  const int64_t head_dim = pool.layout.head_dim;
  const int32_t group = params.q_heads / pool.layout.kv_heads;
  int64_t first_query = 0;  // of the sequence, in [sum of queries]
  for (const AttentionSequence& sequence : sequences) {
    if (sequence.queries == 0) continue;
    const Positions all = {Visible(sequence, 0, params).first, Visible(sequence, sequence.queries - 1, params).last};
    for (int32_t kv_head = 0; kv_head < pool.layout.kv_heads; ++kv_head) {
      const std::vector<float> keys = Gather(sequence, all, layer, 0, kv_head, pool);
      const std::vector<float> values = Gather(sequence, all, layer, 1, kv_head, pool);
      for (int64_t i = 0; i < sequence.queries; ++i) {
        const Positions seen = Visible(sequence, i, params);
        const int64_t from = (seen.first - all.first) * head_dim;
        for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          const int64_t row = (first_query + i) * params.q_heads + head;
          const double sink =
              params.sinks.empty() ? -std::numeric_limits<double>::infinity() : double{params.sinks[head]};
          const double row_lse = AttendRow(&query[row * head_dim], keys.data() + from, values.data() + from,
                                           seen.last - seen.first, head_dim, params, sink, &out[row * head_dim]);
          if (!lse.empty()) lse[row] = static_cast<float>(row_lse);
        }
      }
    }
    first_query += sequence.queries;
  }
}

}  // namespace kvmesh::reference
