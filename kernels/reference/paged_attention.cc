#include "kernels/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/element.h"
#include "kernels/reference/reference.h"

namespace kvmesh::reference {
namespace {

// One query of one head against keys [first, last) of `kv_head`. Returns the natural log-sum-exp.
double AttendRow(const float* query, const AttentionSequence& sequence, int64_t first, int64_t last, int32_t layer,
                 int32_t kv_head, const AttentionParams& params, const KvPoolView& pool, float* out) {
  const BlockLayout& layout = pool.layout;
  const auto at = [&](int64_t kv, int64_t token) {
    return pool.At(sequence.block_table[token / layout.block_tokens], layer, kv, kv_head, token % layout.block_tokens);
  };
  std::vector<double> scores;
  double highest = -std::numeric_limits<double>::infinity();
  for (int64_t token = first; token < last; ++token) {
    double score = 0;
    for (int64_t d = 0; d < layout.head_dim; ++d)
      score += double{query[d]} * LoadElement(at(0, token), d, layout.format);
    score *= params.scale;
    if (params.soft_cap > 0) score = params.soft_cap * std::tanh(score / params.soft_cap);
    scores.push_back(score);
    highest = std::max(highest, score);
  }
  double sum = 0;
  std::vector<double> acc(layout.head_dim, 0.0);
  for (int64_t token = first; token < last; ++token) {
    const double weight = std::exp(scores[token - first] - highest);
    sum += weight;
    for (int64_t d = 0; d < layout.head_dim; ++d) acc[d] += weight * LoadElement(at(1, token), d, layout.format);
  }
  for (int64_t d = 0; d < layout.head_dim; ++d) out[d] = first < last ? static_cast<float>(acc[d] / sum) : 0.0f;
  return first < last ? highest + std::log(sum) : -std::numeric_limits<double>::infinity();
}

}  // namespace

void PagedAttention(std::span<const float> query, std::span<const AttentionSequence> sequences, int32_t layer,
                    const AttentionParams& params, const KvPoolView& pool, std::span<float> out, std::span<float> lse) {
  const int32_t group = params.q_heads / pool.layout.kv_heads;
  size_t row = 0;  // of [sum of queries, q_heads]
  for (const AttentionSequence& sequence : sequences) {
    for (int64_t i = 0; i < sequence.queries; ++i) {
      const int64_t last = std::max<int64_t>(sequence.first_position + i + 1, 0);
      const int64_t first = params.window > 0 ? std::max<int64_t>(last - params.window, 0) : 0;
      for (int32_t head = 0; head < params.q_heads; ++head, ++row) {
        const size_t at = row * pool.layout.head_dim;
        const double row_lse =
            AttendRow(&query[at], sequence, first, last, layer, head / group, params, pool, &out[at]);
        if (!lse.empty()) lse[row] = static_cast<float>(row_lse);
      }
    }
  }
}

}  // namespace kvmesh::reference
