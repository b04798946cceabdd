#include "kernels/attention_parts.h"

#include <cmath>
#include <limits>
#include <memory>

#include "kernels/check.h"
#include "kernels/cpu/avx512/attention.h"
#include "kernels/cpu/kernels.h"
#include "kernels/merge_states.h"
#include "kernels/reference/reference.h"

namespace kvmesh {
namespace {

constexpr int32_t kMaxHeadDim = 256;
constexpr float kEmpty = -std::numeric_limits<float>::infinity();

// The states of two spans. About 260 KiB.
struct StateScratch {
  float out[2][kMostRows * kMaxHeadDim];
  float lse[2][kMostRows];
};

// Every block id that a query of `sequence` reads is inside the pool.
void CheckTable(const AttentionSequence& sequence, const AttentionParams& params, const KvPoolView& pool) {
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

void CheckShape(const AttentionParams& params, const BlockLayout& layout) {
  Require(KvFormatBits(layout.format) > 0 && !layout.mla(), "PagedAttention: no format, or an MLA layout");
  Require(layout.head_dim > 0 && layout.head_dim <= kMaxHeadDim && layout.head_dim % 8 == 0,
          "PagedAttention: head_dim is not a multiple of 8 up to 256");
  Require(params.q_heads > 0 && params.q_heads % layout.kv_heads == 0,
          "PagedAttention: q_heads is not a multiple of kv_heads");
  Require(params.sinks.empty() || params.sinks.size() == static_cast<size_t>(params.q_heads),
          "PagedAttention: sinks are not [q_heads]");
}

void CheckBlocks(std::span<const AttentionSequence> sequences, const AttentionParams& params, const KvPoolView& pool) {
  for (const AttentionSequence& sequence : sequences) {
    Require(sequence.queries >= 0, "PagedAttention: negative number of queries");
    CheckTable(sequence, params, pool);
  }
}

void CheckCall(std::span<const AttentionSequence> sequences, const AttentionCall& call) {
  const BlockLayout& layout = call.pool.layout;
  Require(call.layer >= 0 && call.layer < layout.layers, "PagedAttention: layer out of range");
  size_t rows = 0;
  for (const AttentionSequence& s : sequences) rows += static_cast<size_t>(s.queries) * call.params.q_heads;
  Require(call.query.size() == rows * layout.head_dim && call.out.size() == call.query.size(),
          "PagedAttention: query and out are not [sum of queries, q_heads, head_dim]");
  Require(call.lse.empty() || call.lse.size() == rows, "PagedAttention: lse is not [sum of queries, q_heads]");
}

KeyRange SpansOf(const AttentionRows& rows, int32_t group, int64_t window) {
  const int64_t end = rows.Position(rows.count - 1, group) + 1;
  if (end <= 0) return {0, 1};
  const int64_t begin = window > 0 ? std::max<int64_t>(rows.Position(0, group) + 1 - window, 0) : 0;
  return {begin / kSpanTokens, (end - 1) / kSpanTokens + 1};
}

void AttendSpan(KernelVariant variant, const AttentionCall& call, const AttentionRows& rows, int64_t span,
                RowStates out) {
  const KeyRange keys = {span * kSpanTokens, (span + 1) * kSpanTokens};
  switch (variant) {
    case KernelVariant::kReference:
      return reference::AttendRows(call, rows, keys, out);
    case KernelVariant::kHighway:
      return cpu::AttendRows(call, rows, keys, out);
    case KernelVariant::kAvx512:
      return avx512::AttendRows(call, rows, keys, out);
  }
}

void MergeSpan(const AttentionRows& rows, int32_t head_dim, RowStates total, RowStates next) {
  const size_t count = static_cast<size_t>(rows.size()), elements = count * head_dim;
  const std::span<float> out{total.out, elements}, lse{total.lse, count};
  MergeStates({out, lse}, {{next.out, elements}, {next.lse, count}}, head_dim, out, lse);
}

void StoreRows(const AttentionCall& call, const AttentionRows& rows, RowStates total) {
  const int32_t group = call.group(), head_dim = call.pool.layout.head_dim;
  for (int r = 0; r < rows.size(); ++r) {
    const int64_t index = rows.Index(r, call.params, group);
    const float* from = total.out + int64_t{r} * head_dim;
    float* to = call.out.data() + index * head_dim;
    float lse = total.lse[r];
    if (call.params.sinks.empty()) {
      std::copy_n(from, head_dim, to);
    } else {
      // The sink is one more state, with values of zero.
      const double sink = call.params.sinks[rows.Head(r, group)];
      const double highest = std::max(double{lse}, sink);
      const double sum = highest == kEmpty ? 1 : std::exp(lse - highest) + std::exp(sink - highest);
      const float weight = lse == kEmpty ? 0 : static_cast<float>(std::exp(lse - highest) / sum);
      for (int32_t d = 0; d < head_dim; ++d) to[d] = from[d] * weight;
      lse = static_cast<float>(highest + std::log(sum));
    }
    if (!call.lse.empty()) call.lse[index] = lse;
  }
}

void AttendSpans(KernelVariant variant, const AttentionCall& call, const AttentionRows& rows) {
  thread_local std::unique_ptr<StateScratch> scratch = std::make_unique<StateScratch>();
  const RowStates total = {scratch->out[0], scratch->lse[0]}, next = {scratch->out[1], scratch->lse[1]};
  const KeyRange spans = SpansOf(rows, call.group(), call.params.window);
  AttendSpan(variant, call, rows, spans.begin, total);
  for (int64_t span = spans.begin + 1; span < spans.end; ++span) {
    AttendSpan(variant, call, rows, span, next);
    MergeSpan(rows, call.pool.layout.head_dim, total, next);
  }
  StoreRows(call, rows, total);
}

void AttendWith(KernelVariant variant, std::span<const AttentionSequence> sequences, const AttentionCall& call) {
  const int32_t kv_heads = call.pool.layout.kv_heads;
  ForEachRows(sequences, call.group(), kv_heads, kv_heads,
              [&](const AttentionRows& rows) { AttendSpans(variant, call, rows); });
}

}  // namespace kvmesh
