// What the attention kernels are launched with, and which rows and keys a block of threads takes.
//
// The rows of a sequence are its queries times the query heads of a kv head, row r being query r / group, head
// r % group of the group: all heads that share a K/V tile are packed. A sequence of at most kSplitQueries queries is
// split: the keys of each span of kSplitTokens positions, from multiples of it on, go to a block of threads of their
// own, whose states are merged in order. The cuts depend on positions alone.
#ifndef KVMESH_KERNELS_CUDA_ATTENTION_ARGS_H_
#define KVMESH_KERNELS_CUDA_ATTENTION_ARGS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device_view.h"
#include "kernels/cuda/machine.h"
#include "kernels/cuda/states_body.h"
#include "kernels/kv_pool_view.h"

namespace kvmesh::cuda {

inline constexpr int64_t kSplitTokens = 512;
inline constexpr int64_t kSplitQueries = 16;

struct AttentionArgs {
  const float* query = nullptr;  // [sum of queries, q_heads, head_dim]
  const float* sinks = nullptr;  // [q_heads], or null
  float* out = nullptr;          // [sum of queries, q_heads, value_dim]
  float* lse = nullptr;          // [sum of queries, q_heads], or null
  const DeviceSequence* sequences = nullptr;
  KvPoolView pool;
  int64_t window = 0;
  float scale = 0;
  float soft_cap = 0;
  int32_t layer = 0;
  int32_t batch = 0;
  int32_t q_heads = 0;
  int32_t value_dim = 0;         // head_dim; latent_dim with MLA
  int32_t row_tiles = 0;         // of a sequence and kv head, in this launch
  int32_t max_queries = 0;       // of the split sequences
  int32_t spans = 0;             // at most, of a split sequence
  bool aligned = false;          // rows start at multiples of 16 bytes
  float* partial_out = nullptr;  // [batch, max_queries, q_heads, spans, value_dim]
  float* partial_lse = nullptr;  // [batch, max_queries, q_heads, spans]

  constexpr int32_t group() const { return q_heads / pool.layout.kv_heads; }
  // Index in partial_lse.
  constexpr int64_t Partial(int64_t sequence, int64_t query, int64_t head, int64_t span) const {
    return ((sequence * max_queries + query) * q_heads + head) * spans + span;
  }
};

// Positions [begin, end).
struct Keys {
  int64_t begin = 0;
  int64_t end = 0;
};

// Those that a query at `position` sees.
KVMESH_HOST_DEVICE constexpr Keys VisibleKeys(int64_t position, int64_t window) {
  const int64_t end = position + 1 > 0 ? position + 1 : 0;
  return {window > 0 && end > window ? end - window : 0, end};
}

// The first span of a sequence: spans are counted from it.
KVMESH_HOST_DEVICE constexpr int64_t FirstSpan(const DeviceSequence& sequence, int64_t window) {
  return VisibleKeys(sequence.first_position, window).begin / kSplitTokens;
}

// Spans that a split sequence of `queries` queries, whose last sees `length` keys, can have at most.
constexpr int64_t MostSpans(int64_t length, int64_t queries, int64_t window) {
  const int64_t seen = window > 0 ? std::min(length, window + queries - 1) : length;
  return std::min((std::max<int64_t>(length, 1) - 1) / kSplitTokens + 1,
                  (std::max<int64_t>(seen, 1) + kSplitTokens - 2) / kSplitTokens + 1);
}

// What one block of threads computes: rows [first, first + count) of a kv head against `keys`. count 0: nothing.
struct AttentionTile {
  DeviceSequence sequence;
  int64_t index = 0;  // of the sequence
  int32_t kv_head = 0;
  int64_t first = 0;
  int32_t count = 0;
  int64_t span = 0;
  Keys keys;

  KVMESH_HOST_DEVICE int64_t Query(int32_t row, int32_t group) const { return (first + row) / group; }
  KVMESH_HOST_DEVICE int32_t Head(int32_t row, int32_t group) const {
    return kv_head * group + static_cast<int32_t>((first + row) % group);
  }
  KVMESH_HOST_DEVICE int64_t Position(int32_t row, int32_t group) const {
    return sequence.first_position + Query(row, group);
  }
  // Index in [sum of queries, q_heads].
  KVMESH_HOST_DEVICE int64_t Index(int32_t row, int32_t group, int32_t q_heads) const {
    return (sequence.first_query + Query(row, group)) * q_heads + Head(row, group);
  }
};

// The tile of block (x, y) of a grid of batch * row_tiles * kv_heads by the spans (split) or one.
template <bool kSplit>
KVMESH_HOST_DEVICE AttentionTile TileOf(const AttentionArgs& args, int32_t rows, int64_t x, int64_t y) {
  const int32_t kv_heads = args.pool.layout.kv_heads, group = args.group();
  AttentionTile tile;
  tile.kv_head = static_cast<int32_t>(x % kv_heads);
  tile.index = x / kv_heads / args.row_tiles;
  tile.sequence = args.sequences[tile.index];
  tile.first = x / kv_heads % args.row_tiles * rows;
  const int64_t left = tile.sequence.queries * group - tile.first;
  if (left <= 0 || (tile.sequence.queries <= kSplitQueries) != kSplit) return tile;
  tile.count = static_cast<int32_t>(left < rows ? left : rows);
  tile.keys = {VisibleKeys(tile.Position(0, group), args.window).begin,
               VisibleKeys(tile.Position(tile.count - 1, group), args.window).end};
  if (!kSplit) return tile;
  tile.span = y;
  const int64_t begin = (FirstSpan(tile.sequence, args.window) + y) * kSplitTokens;
  tile.keys.begin = tile.keys.begin > begin ? tile.keys.begin : begin;
  tile.keys.end = tile.keys.end < begin + kSplitTokens ? tile.keys.end : begin + kSplitTokens;
  if (tile.keys.begin >= tile.keys.end) tile.count = 0;
  return tile;
}

// A row's state before it is divided: values weighted by exp(score - highest), and the sum of the weights. Without keys
// `highest` is -inf.
struct RowSum {
  float highest = kEmptyLse;
  float sum = 0;
};

// What a row's values are multiplied by, and its lse, once the sink has joined (-inf: none).
struct RowResult {
  float factor = 0;
  float lse = kEmptyLse;
};

KVMESH_HOST_DEVICE inline RowResult FinishRow(const RowSum& row, float sink) {
  const float highest = row.highest > sink ? row.highest : sink;
  if (highest == kEmptyLse) return {row.sum == 0 ? 0.0f : row.sum, row.sum == 0 ? kEmptyLse : row.sum};
  const float weight = row.highest == kEmptyLse ? row.sum : std::exp(row.highest - highest);
  const float sum = row.sum * weight + (sink == kEmptyLse ? 0.0f : std::exp(sink - highest));
  return {weight / sum, highest + std::log(sum)};
}

// Merges the states of the spans of a split row, one block of threads a row: block x of
// batch * max_queries * q_heads.
template <class M>
KVMESH_KERNEL_BODY void MergeSpansBody(M& m, const AttentionArgs& args) {
  const int64_t x = m.Block(0), head = x % args.q_heads, query = x / args.q_heads % args.max_queries;
  const int64_t index = x / args.q_heads / args.max_queries;
  const DeviceSequence sequence = args.sequences[index];
  if (query >= sequence.queries || sequence.queries > kSplitQueries) return;
  const Keys keys = VisibleKeys(sequence.first_position + query, args.window);
  const int64_t begin = keys.begin / kSplitTokens - FirstSpan(sequence, args.window);
  const int64_t count = keys.begin < keys.end ? (keys.end - 1) / kSplitTokens - keys.begin / kSplitTokens + 1 : 0;
  const int64_t first = args.Partial(index, query, head, begin);
  const auto lse = [&](int64_t i) { return args.partial_lse[first + i]; };
  const double sink = args.sinks == nullptr ? double{kEmptyLse} : double{args.sinks[head]};
  const RowWeights weights = WeighStates(count, sink, lse);
  const int64_t row = (sequence.first_query + query) * args.q_heads + head;
  for (int32_t d = m.Thread(); d < args.value_dim; d += m.Threads()) {
    args.out[row * args.value_dim + d] = MergeElement(
        weights, count, lse, [&](int64_t i) { return args.partial_out[(first + i) * args.value_dim + d]; });
  }
  if (m.Thread() == 0 && args.lse != nullptr) args.lse[row] = weights.lse();
}

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_ATTENTION_ARGS_H_
