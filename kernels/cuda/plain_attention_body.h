// Body of attention in fp32 by plain multiply-adds, for every format and for MLA, whose rows are keys and values alike.
// A block of threads takes kPlainRows rows and reads a tile of kPlainKeys keys, in fp32, for all of them; a warp has
// rows w, w + 4, ... and a lane a key (scores) or some of the elements (values).
#ifndef KVMESH_KERNELS_CUDA_PLAIN_ATTENTION_BODY_H_
#define KVMESH_KERNELS_CUDA_PLAIN_ATTENTION_BODY_H_

#include "kernels/cuda/attention_args.h"
#include "kernels/cuda/rows_body.h"

namespace kvmesh::cuda {

inline constexpr int kPlainRows = 16;
inline constexpr int kPlainKeys = 32;
inline constexpr int kPlainThreads = 128;
inline constexpr int kPlainWarpRows = kPlainRows / (kPlainThreads / kWarpThreads);

// fp32 elements from one row of shared memory to the next: odd, so that the lanes' keys lie in different banks.
constexpr int32_t PlainPitch(int32_t head_dim) { return head_dim | 1; }

constexpr size_t PlainSharedBytes(const BlockLayout& layout) {
  return sizeof(float) * static_cast<size_t>(PlainPitch(layout.head_dim)) *
         (kPlainRows + kPlainKeys * (layout.mla() ? 1 : 2));
}

// Reads the keys (kv 0) or values (kv 1) at positions [first, first + kPlainKeys) inside `keys`.
template <class M>
KVMESH_KERNEL_BODY void LoadPlainTile(M& m, const AttentionArgs& args, const AttentionTile& tile, int64_t first,
                                      int64_t kv, float* to) {
  const BlockLayout& layout = args.pool.layout;
  for (int key = m.Thread() / kWarpThreads; key < kPlainKeys; key += m.Threads() / kWarpThreads) {
    const int64_t position = first + key;
    if (position < tile.keys.begin || position >= tile.keys.end) continue;
    const int64_t id = tile.sequence.block_table[position / layout.block_tokens];
    const std::byte* const block = args.pool.base + id * args.pool.slot_stride;
    const int64_t token = position % layout.block_tokens;
    const std::byte* const row = block + layout.Offset(args.layer, kv, tile.kv_head, token);
    const std::byte* const descales = block + layout.ScaleOffset(args.layer, kv, tile.kv_head, token);
    for (int32_t d = m.Thread() % kWarpThreads; d < layout.head_dim; d += kWarpThreads) {
      to[key * PlainPitch(layout.head_dim) + d] = ReadElement(layout, row, descales, d);
    }
  }
}

// The rows of one warp.
template <int kLaneElements>
struct PlainRows {
  RowSum sums[kPlainWarpRows];  // the same in all lanes
  float out[kPlainWarpRows][kLaneElements] = {};
};

// One row against a tile whose first key is at `first`; it sees the keys `seen`.
template <int kLaneElements, class M>
KVMESH_KERNEL_BODY void AttendPlainRow(M& m, const AttentionArgs& args, const float* query, const float* k,
                                       const float* v, int64_t first, const Keys& seen, RowSum& row,
                                       float (&out)[kLaneElements]) {
  const int32_t head_dim = args.pool.layout.head_dim, pitch = PlainPitch(head_dim);
  const int lane = m.Thread() % kWarpThreads;
  const bool visible = first + lane >= seen.begin && first + lane < seen.end;
  float score = 0;
  for (int32_t d = 0; d < head_dim; ++d) score = std::fmaf(query[d], k[lane * pitch + d], score);
  score *= args.scale;
  if (args.soft_cap > 0) score = args.soft_cap * std::tanh(score / args.soft_cap);
  score = visible ? score : kEmptyLse;
  float highest = score;
  for (int mask = 16; mask > 0; mask /= 2) highest = std::fmax(highest, m.ShuffleXor(highest, mask));
  highest = std::fmax(highest, row.highest);
  const float from = highest == kEmptyLse ? 0.0f : highest;
  const float weight = visible ? std::exp(score - from) : 0.0f;
  float sum = weight;
  for (int mask = 16; mask > 0; mask /= 2) sum += m.ShuffleXor(sum, mask);
  const float earlier = row.highest == kEmptyLse ? 0.0f : std::exp(row.highest - from);
  row.sum = row.sum * earlier + sum;
  row.highest = highest;
  KVMESH_UNROLL
  for (int j = 0; j < kLaneElements; ++j) out[j] *= earlier;
  for (int t = 0; t < kPlainKeys; ++t) {
    const float w = m.Shuffle(weight, t);
    if (first + t < seen.begin || first + t >= seen.end) continue;
    KVMESH_UNROLL
    for (int j = 0; j < kLaneElements; ++j) {
      const int32_t d = lane + j * kWarpThreads;
      if (d < args.value_dim) out[j] = std::fmaf(w, v[t * pitch + d], out[j]);
    }
  }
}

template <bool kSplit, int kLaneElements, class M>
KVMESH_KERNEL_BODY void PlainAttentionBody(M& m, const AttentionArgs& args) {
  const AttentionTile tile = TileOf<kSplit>(args, kPlainRows, m.Block(0), m.Block(1));
  if (tile.count == 0) return;
  const BlockLayout& layout = args.pool.layout;
  const int32_t pitch = PlainPitch(layout.head_dim), group = args.group();
  float* const query = reinterpret_cast<float*>(m.Shared());
  float* const k = query + kPlainRows * pitch;
  float* const v = layout.mla() ? k : k + kPlainKeys * pitch;
  const int warp = m.Thread() / kWarpThreads, warps = kPlainThreads / kWarpThreads, lane = m.Thread() % kWarpThreads;
  for (int r = warp; r < tile.count; r += warps) {
    const float* const from = args.query + tile.Index(r, group, args.q_heads) * layout.head_dim;
    for (int32_t d = lane; d < layout.head_dim; d += kWarpThreads) query[r * pitch + d] = from[d];
  }
  PlainRows<kLaneElements> rows;
  for (int64_t first = tile.keys.begin / kPlainKeys * kPlainKeys; first < tile.keys.end; first += kPlainKeys) {
    m.Sync();  // the tile before is done with
    LoadPlainTile(m, args, tile, first, 0, k);
    if (!layout.mla()) LoadPlainTile(m, args, tile, first, 1, v);
    m.Sync();
    KVMESH_UNROLL
    for (int i = 0; i < kPlainWarpRows; ++i) {
      const int r = warp + i * warps;
      if (r >= tile.count) break;  // the same for the whole warp
      const Keys all = VisibleKeys(tile.Position(r, group), args.window);
      const Keys seen = {std::max(all.begin, tile.keys.begin), std::min(all.end, tile.keys.end)};
      AttendPlainRow(m, args, query + r * pitch, k, v, first, seen, rows.sums[i], rows.out[i]);
    }
  }
  KVMESH_UNROLL
  for (int i = 0; i < kPlainWarpRows; ++i) {
    const int r = warp + i * warps;
    if (r >= tile.count) break;
    const int32_t head = tile.Head(r, group);
    const float sink = kSplit || args.sinks == nullptr ? kEmptyLse : args.sinks[head];
    const RowResult result = FinishRow(rows.sums[i], sink);
    const int64_t index =
        kSplit ? args.Partial(tile.index, tile.Query(r, group), head, tile.span) : tile.Index(r, group, args.q_heads);
    float* const to = (kSplit ? args.partial_out : args.out) + index * args.value_dim;
    float* const lse = kSplit ? args.partial_lse : args.lse;
    KVMESH_UNROLL
    for (int j = 0; j < kLaneElements; ++j) {
      const int32_t d = lane + j * kWarpThreads;
      if (d < args.value_dim) to[d] = rows.out[i][j] * result.factor;
    }
    if (lane == 0 && lse != nullptr) lse[index] = result.lse;
  }
}

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_PLAIN_ATTENTION_BODY_H_
