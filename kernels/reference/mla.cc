#include "kernels/mla.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/reference.h"
#include "kernels/stored_rows.h"

namespace kvmesh::reference {
namespace {

// Rows [0, tokens) of the sequence as they read from the pool.
std::vector<std::vector<float>> LoadRows(const AttentionSequence& sequence, int64_t tokens, int32_t layer,
                                         const KvPoolView& pool) {
  const BlockLayout& layout = pool.layout;
  std::vector<std::vector<float>> out;
  for (int64_t t = 0; t < tokens; ++t) {
    const std::byte* block = pool.base + sequence.block_table[t / layout.block_tokens] * pool.slot_stride;
    out.emplace_back(layout.head_dim);
    DequantizeRows(RowsOfTokens(layout, block, layer, 0, 0, t % layout.block_tokens, 1), layout, out.back().data());
  }
  return out;
}

// One query of one head against `rows`. Returns the natural log-sum-exp.
double AttendRow(const float* query, std::span<const std::vector<float>> rows, const MlaParams& params,
                 int32_t latent_dim, float* out) {
  std::vector<double> scores;
  double highest = -std::numeric_limits<double>::infinity();
  for (const std::vector<float>& row : rows) {
    double score = 0;
    for (size_t d = 0; d < row.size(); ++d) score += double{query[d]} * row[d];
    scores.push_back(score * params.scale);
    highest = std::max(highest, scores.back());
  }
  double sum = 0;
  std::vector<double> acc(latent_dim, 0.0);
  for (size_t token = 0; token < rows.size(); ++token) {
    const double weight = std::exp(scores[token] - highest);
    sum += weight;
    for (int32_t d = 0; d < latent_dim; ++d) acc[d] += weight * rows[token][d];
  }
  for (int32_t d = 0; d < latent_dim; ++d) out[d] = rows.empty() ? 0.0f : static_cast<float>(acc[d] / sum);
  return rows.empty() ? -std::numeric_limits<double>::infinity() : highest + std::log(sum);
}

}  // namespace

void ConcatAndCacheMla(std::span<const float> latent, std::span<const float> rope_key,
                       std::span<const int64_t> slot_mapping, int32_t layer, const KvPoolView& pool) {
  const BlockLayout& layout = pool.layout;
  const int32_t rope_dim = layout.head_dim - layout.latent_dim;
  for (size_t t = 0; t < slot_mapping.size(); ++t) {
    const int64_t slot = slot_mapping[t];
    if (slot < 0) continue;
    std::vector<float> row(&latent[t * layout.latent_dim], &latent[t * layout.latent_dim] + layout.latent_dim);
    for (int32_t d = 0; d < rope_dim; ++d) row.push_back(rope_key[t * rope_dim + d]);
    std::byte* block = pool.base + slot / layout.block_tokens * pool.slot_stride;
    QuantizeRows(row.data(), layout, RowsOfTokens(layout, block, layer, 0, 0, slot % layout.block_tokens, 1));
  }
}

void MlaPagedDecode(std::span<const float> query, std::span<const AttentionSequence> sequences, int32_t layer,
                    const MlaParams& params, const KvPoolView& pool, std::span<float> out, std::span<float> lse) {
  const BlockLayout& layout = pool.layout;
  size_t row = 0;  // of [sum of queries, q_heads]
  for (const AttentionSequence& sequence : sequences) {
    const int64_t tokens = sequence.queries > 0 ? sequence.first_position + sequence.queries : 0;
    const std::vector<std::vector<float>> stored = LoadRows(sequence, tokens, layer, pool);
    for (int64_t i = 0; i < sequence.queries; ++i) {
      const int64_t visible = std::max<int64_t>(sequence.first_position + i + 1, 0);
      for (int32_t head = 0; head < params.q_heads; ++head, ++row) {
        const double row_lse = AttendRow(&query[row * layout.head_dim], std::span(stored).first(visible), params,
                                         layout.latent_dim, &out[row * layout.latent_dim]);
        if (!lse.empty()) lse[row] = static_cast<float>(row_lse);
      }
    }
  }
}

}  // namespace kvmesh::reference
