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

// The arguments of a call, with what follows from them.
struct CallShape {
  const AttentionCall& call;
  int32_t group;  // query heads per kv head
  int head_dim;
  int dim;         // head_dim rounded up to a multiple of 16
  float in_scale;  // multiplies the query: scores come out in log2 units, or, with a soft cap, in units of the cap
  float log2_cap;  // soft cap in log2 units; 0: none
};

}  // namespace kvmesh::cpu
#endif  // KVMESH_KERNELS_CPU_PAGED_ATTENTION_CC_ONCE_

HWY_BEFORE_NAMESPACE();
namespace kvmesh::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void Attend(const CallShape& shape, const AttentionRows& rows, KeyRange keys, RowStates out, AttentionScratch&) {
  reference::AttendRows(shape.call, rows, keys, out);
}

#else

// Makes dim elements at `out`, the head_dim ones of a stored row as fp32, then zeros, and returns `out`.
const std::byte* WidenRow(const CallShape& shape, const std::byte* row, const std::byte* descales,
                          float* HWY_RESTRICT out) {
  DequantizeOne(row, descales, shape.call.pool.layout, out);
  std::fill(out + shape.head_dim, out + shape.dim, 0.0f);
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

// Points key_rows and value_rows at the keys of a kv head in the tile from `start` that lie in `seen`, and at zeros
// elsewhere, so that what no query sees is not read: it may never have been written. Widens what the tile does not read
// as it is.
void GatherTile(const CallShape& shape, const AttentionSequence& sequence, int32_t kv_head, int64_t start,
                const TileJob& job, AttentionScratch& s) {
  const BlockLayout& layout = shape.call.pool.layout;
  const TileRange seen = job.seen;
  const bool widen_keys = layout.format != KvFormat::kF32 && !job.bf16_keys;
  const bool widen_values = shape.dim != shape.head_dim || (layout.format != KvFormat::kF32 && !job.bf16_values);
  for (int j = 0; j < kTile; ++j) {
    s.key_rows[j] = s.value_rows[j] = reinterpret_cast<const std::byte*>(s.zeros);
  }
  for (int j = seen.begin; j < seen.end;) {
    const int64_t token = (start + j) % layout.block_tokens;
    const int64_t id = sequence.block_table[(start + j) / layout.block_tokens];
    const std::byte* at = shape.call.pool.base + id * shape.call.pool.slot_stride;
    const int run = static_cast<int>(std::min<int64_t>(seen.end - j, layout.block_tokens - token));
    const auto keys = RowsOfTokens(layout, at, shape.call.layer, 0, kv_head, token, run);
    const auto values = RowsOfTokens(layout, at, shape.call.layer, 1, kv_head, token, run);
    TouchRows(keys, layout);
    TouchRows(values, layout);
    for (int i = 0; i < run; ++i, ++j) {
      s.key_rows[j] =
          widen_keys ? WidenRow(shape, keys.Row(i), keys.Descales(i), s.key_copy + j * shape.dim) : keys.Row(i);
      s.value_rows[j] = widen_values ? WidenRow(shape, values.Row(i), values.Descales(i), s.value_copy + j * shape.dim)
                                     : values.Row(i);
    }
  }
}

void BeginRows(const CallShape& shape, const AttentionRows& rows, KeyRange keys, AttentionScratch& s) {
  const int64_t window = shape.call.params.window;
  for (int r = 0; r < rows.size(); ++r) {
    const float* query = &shape.call.query[rows.Index(r, shape.call.params, shape.group) * shape.head_dim];
    for (int k = 0; k < shape.head_dim; ++k) s.query[r * shape.head_dim + k] = query[k] * shape.in_scale;
    const int64_t end = rows.Position(r, shape.group) + 1;
    s.keys_seen[r] = {std::max(window > 0 ? end - window : 0, keys.begin), std::min(end, keys.end)};
    s.highest[r] = -std::numeric_limits<float>::infinity();
  }
  std::fill_n(s.acc, rows.size() * shape.dim, 0.0f);
  std::fill_n(s.sums, rows.size() * kPartials, 0.0f);
}

void EndRows(const CallShape& shape, int count, RowStates to, const AttentionScratch& s) {
  for (int r = 0; r < count; ++r) {
    float sum = 0;
    for (int i = 0; i < kPartials; ++i) sum += s.sums[r * kPartials + i];
    const bool empty = sum == 0;
    const float inverse = empty ? 0.0f : 1.0f / sum;
    float* out = to.out + int64_t{r} * shape.head_dim;
    for (int k = 0; k < shape.head_dim; ++k) out[k] = s.acc[r * shape.dim + k] * inverse;
    to.lse[r] = empty ? -std::numeric_limits<float>::infinity()
                      : static_cast<float>(s.highest[r] * 0.69314718055994531 + std::log(double{sum}));
  }
}

// The rows [begin, end) of one kv head that see some key of the tile from `start`, with what they see of it. Ranges of
// later rows begin and end later: those rows are one run.
TileJob RowsOfTile(int begin, int end, int64_t start, AttentionScratch& s) {
  TileJob job = {};
  for (int r = begin; r < end; ++r) {
    const KeyRange seen = s.keys_seen[r];
    s.ranges[r] = {static_cast<int>(std::clamp<int64_t>(seen.begin - start, 0, kTile)),
                   static_cast<int>(std::clamp<int64_t>(seen.end - start, 0, kTile))};
    if (s.ranges[r].begin >= s.ranges[r].end) continue;
    if (job.end == 0) job.begin = r;
    job.end = r + 1;
  }
  if (job.end > 0) job.seen = {s.ranges[job.begin].begin, s.ranges[job.end - 1].end};
  return job;
}

void Attend(const CallShape& shape, const AttentionRows& rows, KeyRange keys, RowStates out, AttentionScratch& s) {
  BeginRows(shape, rows, keys, s);
  const bool bf16 = shape.call.pool.layout.format == KvFormat::kBf16;
  const int64_t first = s.keys_seen[0].begin, last = s.keys_seen[rows.count - 1].end;
  for (int64_t start = first / kTile * kTile; start < last; start += kTile) {
    for (int32_t i = 0; i < rows.kv_heads; ++i) {
      TileJob job = RowsOfTile(i * rows.count, (i + 1) * rows.count, start, s);
      if (job.begin >= job.end) continue;
      job.head_dim = shape.head_dim;
      job.dim = shape.dim;
      job.cap = shape.log2_cap;
      job.bf16_keys = bf16;
      job.bf16_values = bf16 && shape.dim == shape.head_dim;
      GatherTile(shape, rows.sequence, rows.kv_head + i, start, job, s);
      AttendTile(job, s);
    }
  }
  EndRows(shape, rows.size(), out, s);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace kvmesh::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvmesh::cpu {

HWY_EXPORT(Attend);

void AttendRows(const AttentionCall& call, const AttentionRows& rows, KeyRange keys, RowStates out) {
  thread_local std::unique_ptr<AttentionScratch> scratch = std::make_unique<AttentionScratch>();
  const int head_dim = call.pool.layout.head_dim;
  const AttentionParams& params = call.params;
  const bool capped = params.soft_cap > 0;
  const CallShape shape = {.call = call,
                           .group = call.group(),
                           .head_dim = head_dim,
                           .dim = (head_dim + 15) / 16 * 16,
                           .in_scale = capped ? params.scale / params.soft_cap : params.scale * kLog2E,
                           .log2_cap = capped ? params.soft_cap * kLog2E : 0.0f};
  HWY_DYNAMIC_DISPATCH(Attend)(shape, rows, keys, out, *scratch);
}

}  // namespace kvmesh::cpu
#endif  // HWY_ONCE
