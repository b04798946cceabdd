// What the variants of attention compute at a time: some query rows of a sequence against a run of keys.
#ifndef KVMESH_KERNELS_ATTENTION_ROWS_H_
#define KVMESH_KERNELS_ATTENTION_ROWS_H_

#include <cstdint>
#include <span>

#include "kernels/kv_pool_view.h"
#include "kernels/paged_attention.h"

namespace kvmesh {

// The arguments of PagedAttention except the sequences.
struct AttentionCall {
  std::span<const float> query;  // [sum of queries, q_heads, head_dim]
  int32_t layer = 0;
  AttentionParams params;
  KvPoolView pool;
  std::span<float> out;  // as `query`
  std::span<float> lse;  // empty, or [sum of queries, q_heads]

  int32_t group() const { return params.q_heads / pool.layout.kv_heads; }  // query heads per kv head
};

// Rows that share the reading of a tile of keys.
inline constexpr int kMostRows = 128;

// The rows [first, first + count) of each of some kv heads of a sequence; row i of a kv head is query i / group, head
// i % group of the group. Numbered together, kv head by kv head, they are rows 0 .. size().
struct AttentionRows {
  AttentionSequence sequence;
  int64_t first_query = 0;  // index of the sequence's first query in the call
  int32_t kv_head = 0;
  int32_t kv_heads = 0;
  int64_t first = 0;
  int count = 0;

  int size() const { return kv_heads * count; }  // at most kMostRows
  int64_t Position(int r, int32_t group) const { return sequence.first_position + (first + r % count) / group; }
  int32_t Head(int r, int32_t group) const {
    return (kv_head + r / count) * group + static_cast<int32_t>((first + r % count) % group);
  }
  // Index of row r in [sum of queries, q_heads].
  int64_t Index(int r, const AttentionParams& params, int32_t group) const {
    return (first_query + (first + r % count) / group) * params.q_heads + Head(r, group);
  }
};

// Positions [begin, end).
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;

  friend bool operator==(const KeyRange&, const KeyRange&) = default;
};

// Attention of rows over a run of keys, normalized over it; sinks play no part.
struct RowStates {
  float* out;  // [row, head_dim]
  float* lse;  // [row]; -inf, with 0 for out, where a row sees none of the keys
};

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_ATTENTION_ROWS_H_
