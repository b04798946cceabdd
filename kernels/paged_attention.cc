#include "kernels/paged_attention.h"

#include "kernels/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/reference/reference.h"
#include "kernels/variant.h"

namespace kvmesh {
namespace {

constexpr int32_t kMaxHeadDim = 256;

// Every block id that a query of `sequence` reads is inside the pool.
void CheckBlocks(const AttentionSequence& sequence, const AttentionParams& params, const KvPoolView& pool) {
  const int64_t end = sequence.first_position + sequence.queries;
  if (sequence.queries == 0 || end <= 0) return;
  int64_t begin = 0;
  if (params.window > 0 && sequence.first_position >= params.window)
    begin = sequence.first_position + 1 - params.window;
  const int64_t block_tokens = pool.layout.block_tokens;
  const int64_t last = (end - 1) / block_tokens;
  Require(last < static_cast<int64_t>(sequence.block_table.size()), "PagedAttention: block table too short");
  for (int64_t i = begin / block_tokens; i <= last; ++i) {
    Require(sequence.block_table[i] < pool.slots, "PagedAttention: block id outside the pool");
  }
}

}  // namespace

void PagedAttention(std::span<const float> query, std::span<const AttentionSequence> sequences, int32_t layer,
                    const AttentionParams& params, const KvPoolView& pool, std::span<float> out, std::span<float> lse) {
  const BlockLayout& layout = pool.layout;
  Require(KvFormatBits(layout.format) > 0 && !layout.mla(), "PagedAttention: no format, or an MLA layout");
  Require(layout.head_dim > 0 && layout.head_dim <= kMaxHeadDim && layout.head_dim % 8 == 0,
          "PagedAttention: head_dim is not a multiple of 8 up to 256");
  Require(layer >= 0 && layer < layout.layers, "PagedAttention: layer out of range");
  Require(params.q_heads > 0 && params.q_heads % layout.kv_heads == 0,
          "PagedAttention: q_heads is not a multiple of kv_heads");
  Require(params.sinks.empty() || params.sinks.size() == static_cast<size_t>(params.q_heads),
          "PagedAttention: sinks are not [q_heads]");
  size_t rows = 0;
  for (const AttentionSequence& sequence : sequences) {
    Require(sequence.queries >= 0, "PagedAttention: negative number of queries");
    CheckBlocks(sequence, params, pool);
    rows += static_cast<size_t>(sequence.queries) * params.q_heads;
  }
  Require(query.size() == rows * layout.head_dim && out.size() == query.size(),
          "PagedAttention: query and out are not [sum of queries, q_heads, head_dim]");
  Require(lse.empty() || lse.size() == rows, "PagedAttention: lse is not [sum of queries, q_heads]");
  switch (CurrentVariant()) {
    case KernelVariant::kReference:
      return reference::PagedAttention(query, sequences, layer, params, pool, out, lse);
    case KernelVariant::kHighway:
      return cpu::PagedAttention(query, sequences, layer, params, pool, out, lse);
  }
}

}  // namespace kvmesh
