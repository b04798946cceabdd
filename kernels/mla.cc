#include "kernels/mla.h"

#include <algorithm>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/reference/reference.h"
#include "kernels/stored_rows.h"
#include "kernels/variant.h"

namespace kvmesh {
namespace {

constexpr int32_t kMaxRow = 640;

void Append(const float* latent, const float* rope_key, std::span<const int64_t> slot_mapping, int32_t layer,
            const KvPoolView& pool) {
  const BlockLayout& layout = pool.layout;
  const int32_t rope_dim = layout.head_dim - layout.latent_dim;
  std::vector<float> row(layout.head_dim);  // one, since a group of a descale may hold the end of one and the other
  for (size_t t = 0; t < slot_mapping.size(); ++t, latent += layout.latent_dim, rope_key += rope_dim) {
    if (slot_mapping[t] < 0) continue;
    std::copy_n(latent, layout.latent_dim, row.begin());
    std::copy_n(rope_key, rope_dim, row.begin() + layout.latent_dim);
    std::byte* block = pool.base + slot_mapping[t] / layout.block_tokens * pool.slot_stride;
    cpu::QuantizeRows(row.data(), layout,
                      RowsOfTokens(layout, block, layer, 0, 0, slot_mapping[t] % layout.block_tokens, 1));
  }
}

// Every block id that a query of `sequence` reads is inside the pool.
void CheckBlocks(const AttentionSequence& sequence, const KvPoolView& pool) {
  Require(sequence.queries >= 0, "MlaPagedDecode: negative number of queries");
  const int64_t end = sequence.first_position + sequence.queries;
  if (sequence.queries == 0 || end <= 0) return;
  const int64_t blocks = (end - 1) / pool.layout.block_tokens + 1;
  Require(blocks <= static_cast<int64_t>(sequence.block_table.size()), "MlaPagedDecode: block table too short");
  for (int64_t i = 0; i < blocks; ++i) {
    Require(sequence.block_table[i] < pool.slots, "MlaPagedDecode: block id outside the pool");
  }
}

}  // namespace

void ConcatAndCacheMla(std::span<const float> latent, std::span<const float> rope_key,
                       std::span<const int64_t> slot_mapping, int32_t layer, const KvPoolView& pool) {
  const BlockLayout& layout = pool.layout;
  Require(KvFormatBits(layout.format) > 0 && layout.mla(), "ConcatAndCacheMla: no format, or not an MLA layout");
  Require(layer >= 0 && layer < layout.layers, "ConcatAndCacheMla: layer out of range");
  Require(latent.size() == slot_mapping.size() * layout.latent_dim &&
              rope_key.size() == slot_mapping.size() * (layout.head_dim - layout.latent_dim),
          "ConcatAndCacheMla: latent and rope_key are not [tokens, latent_dim] and [tokens, rope_dim]");
  const int64_t limit = pool.slots * layout.block_tokens;
  for (int64_t slot : slot_mapping) Require(slot >= -1 && slot < limit, "ConcatAndCacheMla: slot outside the pool");
  switch (CurrentVariant()) {
    case KernelVariant::kReference:
      return reference::ConcatAndCacheMla(latent, rope_key, slot_mapping, layer, pool);
    case KernelVariant::kHighway:
    case KernelVariant::kAvx512:
      return Append(latent.data(), rope_key.data(), slot_mapping, layer, pool);
  }
}

void MlaPagedDecode(std::span<const float> query, std::span<const AttentionSequence> sequences, int32_t layer,
                    const MlaParams& params, const KvPoolView& pool, std::span<float> out, std::span<float> lse) {
  const BlockLayout& layout = pool.layout;
  Require(KvFormatBits(layout.format) > 0 && layout.mla(), "MlaPagedDecode: no format, or not an MLA layout");
  Require(layout.head_dim >= layout.latent_dim && layout.head_dim <= kMaxRow && layout.head_dim % 8 == 0,
          "MlaPagedDecode: latent_dim + rope_dim is not a multiple of 8 up to 640");
  Require(layer >= 0 && layer < layout.layers, "MlaPagedDecode: layer out of range");
  Require(params.q_heads > 0, "MlaPagedDecode: q_heads is not positive");
  size_t rows = 0;
  for (const AttentionSequence& sequence : sequences) {
    CheckBlocks(sequence, pool);
    rows += static_cast<size_t>(sequence.queries) * params.q_heads;
  }
  Require(query.size() == rows * layout.head_dim && out.size() == rows * layout.latent_dim,
          "MlaPagedDecode: query and out are not [sum of queries, q_heads, row] and [.., latent_dim]");
  Require(lse.empty() || lse.size() == rows, "MlaPagedDecode: lse is not [sum of queries, q_heads]");
  switch (CurrentVariant()) {
    case KernelVariant::kReference:
      return reference::MlaPagedDecode(query, sequences, layer, params, pool, out, lse);
    case KernelVariant::kHighway:
    case KernelVariant::kAvx512:
      return cpu::MlaPagedDecode(query, sequences, layer, params, pool, out, lse);
  }
}

}  // namespace kvmesh
