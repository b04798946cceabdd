// MLA over a paged pool, tile by tile with an online softmax, by the steps of attention_tile-inl.h: the value of a row
// is its own first elements, so keys and values are one gather. A tile is gathered once for up to kRows query rows.
#include "kernels/mla.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/kernels.h"
#include "kernels/reference/reference.h"
#include "kernels/stored_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/mla.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "kernels/cpu/attention_tile-inl.h"
#endif

#ifndef KVMESH_KERNELS_CPU_MLA_CC_ONCE_
#define KVMESH_KERNELS_CPU_MLA_CC_ONCE_
namespace kvmesh::cpu {

inline constexpr int kMaxRow = 640;

// AttentionScratch for rows of MLA. About 1 MiB; one per thread. "dim" is latent_dim rounded up to a multiple of 16.
struct alignas(64) MlaScratch {
  float query[kRows * kMaxRow];
  float keys[kSlice * kTile];
  float scores[kRows * kTile];
  float acc[kRows * kMaxRow];
  float sums[kRows * kPartials];
  float highest[kRows];
  float rescale[kRows];
  float row_copy[kTile * kMaxRow + kPartials];  // [key][head_dim] as fp32, where the tile can't read the pool's rows
  float zeros[kMaxRow];
  const std::byte* key_rows[kTile];
  const std::byte* value_rows[kTile];
  TileRange ranges[kRows];
};

// The arguments of one call, with what follows from them.
struct MlaCall {
  const float* query;
  float* out;
  float* lse;  // or null
  int32_t layer;
  const MlaParams& params;
  const KvPoolView& pool;
  int head_dim;
  int latent_dim;
  int dim;
  bool copy;  // rows go through row_copy
};

// Rows [first, first + count) of a sequence; row r is query r / q_heads, head r % q_heads.
struct MlaRows {
  const AttentionSequence& sequence;
  int64_t first;
  int count;
  int64_t index;  // of row `first` in [sum of queries, q_heads]

  // Keys that row r sees.
  int64_t Visible(int r, int32_t q_heads) const { return sequence.first_position + (first + r) / q_heads + 1; }
};

}  // namespace kvmesh::cpu
#endif  // KVMESH_KERNELS_CPU_MLA_CC_ONCE_

HWY_BEFORE_NAMESPACE();
namespace kvmesh::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

void AttendMla(const MlaCall& call, std::span<const AttentionSequence> sequences, MlaScratch&) {
  size_t rows = 0;
  for (const AttentionSequence& sequence : sequences) rows += sequence.queries * call.params.q_heads;
  reference::MlaPagedDecode({call.query, rows * call.head_dim}, sequences, call.layer, call.params, call.pool,
                            {call.out, rows * call.latent_dim}, {call.lse, call.lse == nullptr ? 0 : rows});
}

#else

// Points key_rows and value_rows at the `seen` first rows of the tile from `start`, and at zeros beyond: what no query
// sees is not read.
void GatherMlaTile(const MlaCall& call, const AttentionSequence& sequence, int64_t start, int seen, MlaScratch& s) {
  const BlockLayout& layout = call.pool.layout;
  for (int j = 0; j < seen;) {
    const int64_t token = (start + j) % layout.block_tokens;
    const int64_t id = sequence.block_table[(start + j) / layout.block_tokens];
    const std::byte* block = call.pool.base + id * call.pool.slot_stride;
    const int run = static_cast<int>(std::min<int64_t>(seen - j, layout.block_tokens - token));
    auto rows = RowsOfTokens(layout, block, call.layer, 0, 0, token, run);
    if (call.copy) {
      float* copy = s.row_copy + j * call.head_dim;
      DequantizeRows(rows, layout, copy);
      rows.row = reinterpret_cast<const std::byte*>(copy);
      rows.stride = call.head_dim * static_cast<int64_t>(sizeof(float));
    }
    for (int i = 0; i < run; ++i) s.key_rows[j + i] = s.value_rows[j + i] = rows.Row(i);
    j += run;
  }
  for (int j = seen; j < kTile; ++j) s.key_rows[j] = s.value_rows[j] = reinterpret_cast<const std::byte*>(s.zeros);
}

void BeginMlaRows(const MlaCall& call, const MlaRows& rows, MlaScratch& s) {
  constexpr float kLog2E = 1.44269504088896341f;
  const float in_scale = call.params.scale * kLog2E;
  const float* query = call.query + rows.index * call.head_dim;
  for (int64_t i = 0; i < int64_t{rows.count} * call.head_dim; ++i) s.query[i] = query[i] * in_scale;
  std::fill_n(s.highest, rows.count, -std::numeric_limits<float>::infinity());
  std::fill_n(s.acc, int64_t{rows.count} * call.dim, 0.0f);
  std::fill_n(s.sums, rows.count * kPartials, 0.0f);
}

void EndMlaRows(const MlaCall& call, const MlaRows& rows, const MlaScratch& s) {
  for (int r = 0; r < rows.count; ++r) {
    float sum = 0;
    for (int i = 0; i < kPartials; ++i) sum += s.sums[r * kPartials + i];
    const bool empty = sum == 0;
    const float inverse = empty ? 0.0f : 1.0f / sum;
    float* out = call.out + (rows.index + r) * call.latent_dim;
    for (int k = 0; k < call.latent_dim; ++k) out[k] = s.acc[r * call.dim + k] * inverse;
    if (call.lse == nullptr) continue;
    call.lse[rows.index + r] = empty ? -std::numeric_limits<float>::infinity()
                                     : static_cast<float>(s.highest[r] * 0.69314718055994531 + std::log(double{sum}));
  }
}

void AttendMlaRows(const MlaCall& call, const MlaRows& rows, MlaScratch& s) {
  BeginMlaRows(call, rows, s);
  const bool bf16 = call.pool.layout.format == KvFormat::kBf16 && !call.copy;
  const int64_t last = rows.Visible(rows.count - 1, call.params.q_heads);
  for (int64_t start = 0; start < last; start += kTile) {
    // Later rows see at least what earlier ones do: those that see the tile are the last ones.
    int begin = rows.count;
    for (int r = rows.count - 1; r >= 0; --r) {
      const int64_t visible = rows.Visible(r, call.params.q_heads) - start;
      s.ranges[r] = {0, static_cast<int>(std::clamp<int64_t>(visible, 0, kTile))};
      if (visible > 0) begin = r;
    }
    const TileJob job = {.begin = begin,
                         .end = rows.count,
                         .seen = s.ranges[rows.count - 1],
                         .head_dim = call.head_dim,
                         .dim = call.dim,
                         .cap = 0,
                         .bf16_keys = bf16,
                         .bf16_values = bf16};
    GatherMlaTile(call, rows.sequence, start, job.seen.end, s);
    AttendTile(job, s);
  }
  EndMlaRows(call, rows, s);
}

void AttendMla(const MlaCall& call, std::span<const AttentionSequence> sequences, MlaScratch& scratch) {
  int64_t index = 0;
  for (const AttentionSequence& sequence : sequences) {
    const int64_t total = sequence.queries * call.params.q_heads;
    for (int64_t row = 0; row < total; row += kRows) {
      const int count = static_cast<int>(std::min<int64_t>(kRows, total - row));
      AttendMlaRows(call, {sequence, row, count, index + row}, scratch);
    }
    index += total;
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace kvmesh::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvmesh::cpu {

HWY_EXPORT(AttendMla);

void MlaPagedDecode(std::span<const float> query, std::span<const AttentionSequence> sequences, int32_t layer,
                    const MlaParams& params, const KvPoolView& pool, std::span<float> out, std::span<float> lse) {
  thread_local std::unique_ptr<MlaScratch> scratch = std::make_unique<MlaScratch>();
  const BlockLayout& layout = pool.layout;
  const int dim = (layout.latent_dim + 15) / 16 * 16;
  const bool readable = layout.format == KvFormat::kF32 || layout.format == KvFormat::kBf16;
  const MlaCall call = {.query = query.data(),
                        .out = out.data(),
                        .lse = lse.empty() ? nullptr : lse.data(),
                        .layer = layer,
                        .params = params,
                        .pool = pool,
                        .head_dim = layout.head_dim,
                        .latent_dim = layout.latent_dim,
                        .dim = dim,
                        .copy = !readable || dim > layout.head_dim};
  HWY_DYNAMIC_DISPATCH(AttendMla)(call, sequences, *scratch);
}

}  // namespace kvmesh::cpu
#endif  // HWY_ONCE
