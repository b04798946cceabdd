// Attention over a paged pool, tile by tile with an online softmax. A tile is gathered once for up to kRows query rows:
// in decode all heads of a GQA group, in prefill several queries of it too.
#include "kernels/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/kernels.h"
#include "kernels/reference/reference.h"
#include "kernels/stored_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paged_attention.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "kernels/cpu/attention_tile-inl.h"
#include "kernels/cpu/quantize_kv-inl.h"
#endif

#ifndef KVMESH_KERNELS_CPU_PAGED_ATTENTION_CC_ONCE_
#define KVMESH_KERNELS_CPU_PAGED_ATTENTION_CC_ONCE_
namespace kvmesh::cpu {

inline constexpr float kLog2E = 1.44269504088896341f;

// The arguments of one call, with what follows from them.
struct AttentionCall {
  const float* query;
  float* out;
  float* lse;  // or null
  int32_t layer;
  const AttentionParams& params;
  const KvPoolView& pool;
  int group;  // query heads per kv head
  int head_dim;
  int dim;         // head_dim rounded up to a multiple of 16
  float in_scale;  // multiplies the query: scores come out in log2 units, or, with a soft cap, in units of the cap
  float log2_cap;  // soft cap in log2 units; 0: none
};

// Rows [first, first + count) of one kv head of a sequence; row r is query r / group, head r % group of the group.
struct RowBlock {
  const AttentionSequence& sequence;
  int64_t first_query;  // index of the sequence's first query in the call
  int64_t first;
  int count;
  int32_t kv_head;

  int64_t Position(int r, int group) const { return sequence.first_position + (first + r) / group; }
  int32_t Head(int r, int group) const { return kv_head * group + static_cast<int32_t>((first + r) % group); }
  // Index in [sum of queries, q_heads] of row r.
  int64_t Index(int r, const AttentionCall& call) const {
    const int64_t row = first + r;
    return (first_query + row / call.group) * call.params.q_heads + Head(r, call.group);
  }
};

}  // namespace kvmesh::cpu
#endif  // KVMESH_KERNELS_CPU_PAGED_ATTENTION_CC_ONCE_

HWY_BEFORE_NAMESPACE();
namespace kvmesh::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void Attend(const AttentionCall& call, std::span<const AttentionSequence> sequences, AttentionScratch&) {
  size_t rows = 0;
  for (const AttentionSequence& sequence : sequences) rows += sequence.queries * call.params.q_heads;
  const size_t elements = rows * call.head_dim;
  reference::PagedAttention({call.query, elements}, sequences, call.layer, call.params, call.pool, {call.out, elements},
                            {call.lse, call.lse == nullptr ? 0 : rows});
}

#else

// Makes dim elements at `out`, the head_dim ones of a stored row as fp32, then zeros, and returns `out`.
const std::byte* WidenRow(const AttentionCall& call, const std::byte* row, const std::byte* descales,
                          float* HWY_RESTRICT out) {
  DequantizeOne(row, descales, call.pool.layout, out);
  std::fill(out + call.head_dim, out + call.dim, 0.0f);
  return reinterpret_cast<const std::byte*>(out);
}

// Reads one byte of each cache line of `rows`. Plain loads in the order of memory set off the processor's stream
// prefetch, which fetches several times faster than loads in the order of use, or prefetch instructions, do.
void TouchRows(const StoredRows<const std::byte>& rows, const BlockLayout& layout) {
  constexpr int64_t kLine = 64;
  const auto touch = [](const std::byte* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += kLine) static_cast<void>(*static_cast<const volatile std::byte*>(from + at));
  };
  touch(rows.row, (rows.count - 1) * rows.stride + KvRowBytes(layout.format, layout.head_dim));
  const int64_t descale_bytes = layout.scale_groups() * kDescaleBytes;
  if (descale_bytes > 0) touch(rows.descales, (rows.count - 1) * rows.descale_stride + descale_bytes);
}

// Points key_rows and value_rows at the keys of the tile from `start` that lie in `seen`, and at zeros elsewhere, so
// that what no query sees is not read: it may never have been written. Widens what the tile does not read as it is.
void GatherTile(const AttentionCall& call, const RowBlock& block, int64_t start, const TileJob& job,
                AttentionScratch& s) {
  const BlockLayout& layout = call.pool.layout;
  const TileRange seen = job.seen;
  const bool widen_keys = layout.format != KvFormat::kF32 && !job.bf16_keys;
  const bool widen_values = call.dim != call.head_dim || (layout.format != KvFormat::kF32 && !job.bf16_values);
  for (int j = 0; j < kTile; ++j) {
    s.key_rows[j] = s.value_rows[j] = reinterpret_cast<const std::byte*>(s.zeros);
  }
  for (int j = seen.begin; j < seen.end;) {
    const int64_t token = (start + j) % layout.block_tokens;
    const int64_t id = block.sequence.block_table[(start + j) / layout.block_tokens];
    const std::byte* at = call.pool.base + id * call.pool.slot_stride;
    const int run = static_cast<int>(std::min<int64_t>(seen.end - j, layout.block_tokens - token));
    const auto keys = RowsOfTokens(layout, at, call.layer, 0, block.kv_head, token, run);
    const auto values = RowsOfTokens(layout, at, call.layer, 1, block.kv_head, token, run);
    TouchRows(keys, layout);
    TouchRows(values, layout);
    for (int i = 0; i < run; ++i, ++j) {
      s.key_rows[j] =
          widen_keys ? WidenRow(call, keys.Row(i), keys.Descales(i), s.key_copy + j * call.dim) : keys.Row(i);
      s.value_rows[j] =
          widen_values ? WidenRow(call, values.Row(i), values.Descales(i), s.value_copy + j * call.dim) : values.Row(i);
    }
  }
}

// The part of keys [first, last) that lies in the tile from `start`.
TileRange Clip(int64_t first, int64_t last, int64_t start) {
  return {static_cast<int>(std::clamp<int64_t>(first - start, 0, kTile)),
          static_cast<int>(std::clamp<int64_t>(last - start, 0, kTile))};
}

void BeginRows(const AttentionCall& call, const RowBlock& block, AttentionScratch& s) {
  for (int r = 0; r < block.count; ++r) {
    const float* query = call.query + block.Index(r, call) * call.head_dim;
    for (int k = 0; k < call.head_dim; ++k) s.query[r * call.head_dim + k] = query[k] * call.in_scale;
    s.highest[r] = -std::numeric_limits<float>::infinity();
  }
  std::fill_n(s.acc, block.count * call.dim, 0.0f);
  std::fill_n(s.sums, block.count * kPartials, 0.0f);
  if (call.params.sinks.empty()) return;
  // A sink is a first key without a value.
  for (int r = 0; r < block.count; ++r) {
    s.highest[r] = call.params.sinks[block.Head(r, call.group)] * kLog2E;
    if (s.highest[r] != -std::numeric_limits<float>::infinity()) s.sums[r * kPartials] = 1.0f;
  }
}

void EndRows(const AttentionCall& call, const RowBlock& block, const AttentionScratch& s) {
  for (int r = 0; r < block.count; ++r) {
    float sum = 0;
    for (int i = 0; i < kPartials; ++i) sum += s.sums[r * kPartials + i];
    const bool empty = sum == 0;
    const float inverse = empty ? 0.0f : 1.0f / sum;
    const int64_t index = block.Index(r, call);
    float* out = call.out + index * call.head_dim;
    for (int k = 0; k < call.head_dim; ++k) out[k] = s.acc[r * call.dim + k] * inverse;
    if (call.lse == nullptr) continue;
    call.lse[index] = empty ? -std::numeric_limits<float>::infinity()
                            : static_cast<float>(s.highest[r] * 0.69314718055994531 + std::log(double{sum}));
  }
}

void AttendBlock(const AttentionCall& call, const RowBlock& block, AttentionScratch& s) {
  BeginRows(call, block, s);
  const bool bf16 = call.pool.layout.format == KvFormat::kBf16;
  const int64_t window = call.params.window > 0 ? call.params.window : std::numeric_limits<int64_t>::max() / 2;
  const int64_t last = block.Position(block.count - 1, call.group) + 1;
  const int64_t first = std::max<int64_t>(block.Position(0, call.group) + 1 - window, 0);
  for (int64_t start = first / kTile * kTile; start < last; start += kTile) {
    // Ranges of later rows begin and end later: the rows that see the tile are one run.
    int begin = block.count;
    int end = 0;
    for (int r = 0; r < block.count; ++r) {
      const int64_t row_last = block.Position(r, call.group) + 1;
      s.ranges[r] = Clip(std::max<int64_t>(row_last - window, 0), row_last, start);
      if (s.ranges[r].begin >= s.ranges[r].end) continue;
      begin = std::min(begin, r);
      end = r + 1;
    }
    if (begin >= end) continue;
    const TileJob job = {.begin = begin,
                         .end = end,
                         .seen = {s.ranges[begin].begin, s.ranges[end - 1].end},
                         .head_dim = call.head_dim,
                         .dim = call.dim,
                         .cap = call.log2_cap,
                         .bf16_keys = bf16,
                         .bf16_values = bf16 && call.dim == call.head_dim};
    GatherTile(call, block, start, job, s);
    AttendTile(job, s);
  }
  EndRows(call, block, s);
}

void Attend(const AttentionCall& call, std::span<const AttentionSequence> sequences, AttentionScratch& scratch) {
  int64_t first_query = 0;
  for (const AttentionSequence& sequence : sequences) {
    const int64_t rows = sequence.queries * call.group;
    for (int32_t kv_head = 0; kv_head < call.pool.layout.kv_heads; ++kv_head) {
      for (int64_t row = 0; row < rows; row += kRows) {
        const int count = static_cast<int>(std::min<int64_t>(kRows, rows - row));
        AttendBlock(call, {sequence, first_query, row, count, kv_head}, scratch);
      }
    }
    first_query += sequence.queries;
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace kvmesh::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvmesh::cpu {

HWY_EXPORT(Attend);

void PagedAttention(std::span<const float> query, std::span<const AttentionSequence> sequences, int32_t layer,
                    const AttentionParams& params, const KvPoolView& pool, std::span<float> out, std::span<float> lse) {
  thread_local std::unique_ptr<AttentionScratch> scratch = std::make_unique<AttentionScratch>();
  const int head_dim = pool.layout.head_dim;
  const bool capped = params.soft_cap > 0;
  const AttentionCall call = {.query = query.data(),
                              .out = out.data(),
                              .lse = lse.empty() ? nullptr : lse.data(),
                              .layer = layer,
                              .params = params,
                              .pool = pool,
                              .group = params.q_heads / pool.layout.kv_heads,
                              .head_dim = head_dim,
                              .dim = (head_dim + 15) / 16 * 16,
                              .in_scale = capped ? params.scale / params.soft_cap : params.scale * kLog2E,
                              .log2_cap = capped ? params.soft_cap * kLog2E : 0.0f};
  HWY_DYNAMIC_DISPATCH(Attend)(call, sequences, *scratch);
}

}  // namespace kvmesh::cpu
#endif  // HWY_ONCE
