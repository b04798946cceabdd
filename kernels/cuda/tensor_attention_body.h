// Body of attention on tensor cores (mma.m16n8k16, fp32 sums) over pools of fp16, bf16, fp8 and int8.
#ifndef KVMESH_KERNELS_CUDA_TENSOR_ATTENTION_BODY_H_
#define KVMESH_KERNELS_CUDA_TENSOR_ATTENTION_BODY_H_

#include "kernels/cuda/tensor_tile.h"

namespace kvmesh::cuda {

// What a lane holds of its warp's 16 rows: two of them, lane / 4 and that plus 8.
template <class Shape>
struct TensorRows {
  Keys seen[2];    // keys that each row sees; none for a row that is not
  RowSum sums[2];  // the sum over this lane's keys alone
  float out[Shape::kHeadDim / 8][4] = {};
};

// Where the K or V tile lies that the tensor cores read, and from which of its keys on this warp does.
template <class Shape>
KVMESH_HOST_DEVICE const std::byte* TileAt(const std::byte* shared, int stage, int kv, int key) {
  if constexpr (Shape::kOneByte) {
    return shared + Shape::kConverted + (kv * Shape::kKeys + key) * Shape::kPitch;
  } else {
    return shared + (stage * 2 + kv) * Shape::kRawTile + key * Shape::kRawPitch;
  }
}

// scores[n]: c fragment of keys 8 n .. 8 n + 7 of the warp's.
template <class Shape, class M>
KVMESH_KERNEL_BODY void Scores(M& m, int row, const std::byte* keys, bool rest,
                               float (&scores)[Shape::kWarpKeys / 8][4]) {
  using Element = typename Shape::Element;
  const std::byte* const query = m.Shared() + Shape::kQuery + row * Shape::kPitch;
  KVMESH_UNROLL
  for (auto& c : scores) c[0] = c[1] = c[2] = c[3] = 0;
  KVMESH_UNROLL
  for (int d = 0; d < Shape::kHeadDim; d += 16) {
    uint32_t a[4], low[4];
    const auto at = [&](int lane) {
      return query + QueryFragmentRow(lane).row * Shape::kPitch + (d + QueryFragmentRow(lane).column) * 2;
    };
    m.template LoadMatrices<false>(a, at);
    if (rest) m.template LoadMatrices<false>(low, [&](int lane) { return at(lane) + Shape::kQueryTile; });
    KVMESH_UNROLL
    for (int n = 0; n < Shape::kWarpKeys / 16; ++n) {
      uint32_t b[4];
      m.template LoadMatrices<false>(b, [&](int lane) {
        const FragmentRow r = KeyFragmentRow(lane);
        return keys + (n * 16 + r.row) * Shape::kPitch + (d + r.column) * 2;
      });
      m.template Mma<Element>(scores[2 * n], a, b[0], b[1]);
      m.template Mma<Element>(scores[2 * n + 1], a, b[2], b[3]);
      if (rest) m.template Mma<Element>(scores[2 * n], low, b[0], b[1]);
      if (rest) m.template Mma<Element>(scores[2 * n + 1], low, b[2], b[3]);
    }
  }
}

// Turns scores into weights exp(score - highest) and rescales what the rows hold. `position`: of the warp's first key;
// `descales`: of its keys, K then V at kKeys. A key that a row does not see weighs 0 whatever its score is. Weights
// come out with the descales of V applied.
template <class Shape, class M>
KVMESH_KERNEL_BODY void Weigh(M& m, const AttentionArgs& args, int64_t position, const float* descales,
                              float (&scores)[Shape::kWarpKeys / 8][4], TensorRows<Shape>& rows) {
  const int lane = m.Thread() % kWarpThreads;
  KVMESH_UNROLL
  for (int half = 0; half < 2; ++half) {
    float highest = rows.sums[half].highest;
    KVMESH_UNROLL
    for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
      KVMESH_UNROLL
      for (int j = 0; j < 2; ++j) {
        const int key = n * 8 + SumElement(lane, j).column;
        float x = scores[n][half * 2 + j];
        if constexpr (Shape::kOneByte) x *= descales[key];
        x *= args.scale;
        if (args.soft_cap > 0) x = args.soft_cap * std::tanh(x / args.soft_cap);
        const bool visible = position + key >= rows.seen[half].begin && position + key < rows.seen[half].end;
        scores[n][half * 2 + j] = visible ? x : kEmptyLse;
        highest = std::fmax(highest, scores[n][half * 2 + j]);
      }
    }
    highest = std::fmax(highest, m.ShuffleXor(highest, 1));
    highest = std::fmax(highest, m.ShuffleXor(highest, 2));
    const float from = highest == kEmptyLse ? 0.0f : highest;
    const float earlier = rows.sums[half].highest == kEmptyLse ? 0.0f : std::exp(rows.sums[half].highest - from);
    float sum = 0;
    KVMESH_UNROLL
    for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
      KVMESH_UNROLL
      for (int j = 0; j < 2; ++j) {
        const int key = n * 8 + SumElement(lane, j).column;
        const bool visible = position + key >= rows.seen[half].begin && position + key < rows.seen[half].end;
        const float weight = visible ? std::exp(scores[n][half * 2 + j] - from) : 0.0f;
        sum += weight;
        scores[n][half * 2 + j] = weight;
        if constexpr (Shape::kOneByte) scores[n][half * 2 + j] = visible ? weight * descales[Shape::kKeys + key] : 0.0f;
      }
    }
    rows.sums[half].sum = rows.sums[half].sum * earlier + sum;
    rows.sums[half].highest = highest;
    KVMESH_UNROLL
    for (auto& c : rows.out) {
      c[half * 2] *= earlier;
      c[half * 2 + 1] *= earlier;
    }
  }
}

// rows.out += weights * values.
template <class Shape, class M>
KVMESH_KERNEL_BODY void AddValues(M& m, const std::byte* values, const float (&weights)[Shape::kWarpKeys / 8][4],
                                  TensorRows<Shape>& rows) {
  using Element = typename Shape::Element;
  KVMESH_UNROLL
  for (int k = 0; k < Shape::kWarpKeys / 16; ++k) {
    const float(&first)[4] = weights[2 * k];
    const float(&second)[4] = weights[2 * k + 1];
    const uint32_t a[4] = {PackElements<Element>(first[0], first[1]), PackElements<Element>(first[2], first[3]),
                           PackElements<Element>(second[0], second[1]), PackElements<Element>(second[2], second[3])};
    KVMESH_UNROLL
    for (int d = 0; d < Shape::kHeadDim / 16; ++d) {
      uint32_t b[4];
      m.template LoadMatrices<true>(b, [&](int lane) {
        const FragmentRow r = ValueFragmentRow(lane);
        return values + (k * 16 + r.row) * Shape::kPitch + (d * 16 + r.column) * 2;
      });
      m.template Mma<Element>(rows.out[2 * d], a, b[0], b[1]);
      m.template Mma<Element>(rows.out[2 * d + 1], a, b[2], b[3]);
    }
  }
}

// The same key by key, each for the rows that see it: 0 times an infinity or a NaN would spread to the others.
template <class Shape, class M>
KVMESH_KERNEL_BODY void AddSeenValues(M& m, int64_t position, const std::byte* values,
                                      const float (&weights)[Shape::kWarpKeys / 8][4], TensorRows<Shape>& rows) {
  using Element = typename Shape::Element;
  const int lane = m.Thread() % kWarpThreads;
  KVMESH_UNROLL
  for (int i = 0; i < Shape::kWarpKeys / 4; ++i) {
    for (int quad = 0; quad < 4; ++quad) {
      const int key = i / 2 * 8 + quad * 2 + i % 2;
      const std::byte* const value = values + key * Shape::kPitch + SumElement(lane, 0).column * 2;
      KVMESH_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float weight = m.Shuffle(weights[i / 2][half * 2 + i % 2], lane / 4 * 4 + quad);
        if (position + key < rows.seen[half].begin || position + key >= rows.seen[half].end) continue;
        KVMESH_UNROLL
        for (int n = 0; n < Shape::kHeadDim / 8; ++n) {
          uint32_t pair;
          std::memcpy(&pair, __builtin_assume_aligned(value + n * 16, 4), 4);
          float(&to)[4] = rows.out[n];
          to[half * 2] = std::fmaf(weight, FromElement<Element>(static_cast<uint16_t>(pair)), to[half * 2]);
          to[half * 2 + 1] =
              std::fmaf(weight, FromElement<Element>(static_cast<uint16_t>(pair >> 16)), to[half * 2 + 1]);
        }
      }
    }
  }
}

// Whether this thread's share of the V tile has an infinity or a NaN, its descale included.
template <class Shape, class M>
KVMESH_KERNEL_BODY bool HasNonFinite(M& m, int stage, const float* descales) {
  const uint16_t exponent = std::is_same_v<typename Shape::Element, Bf16> ? 0x7f80 : 0x7c00;
  bool found = false;
  for (int i = m.Thread(); i < Shape::kKeys * Shape::kHeadDim; i += Shape::kThreads) {
    uint16_t bits;
    std::memcpy(
        &bits,
        __builtin_assume_aligned(TileAt<Shape>(m.Shared(), stage, 1, i / Shape::kHeadDim) + i % Shape::kHeadDim * 2, 2),
        2);
    found |= (bits & exponent) == exponent;
  }
  if constexpr (Shape::kOneByte) {
    for (int i = m.Thread(); i < Shape::kKeys; i += Shape::kThreads) {
      found |= (BitCast<uint32_t>(descales[Shape::kKeys + i]) & 0x7f800000u) == 0x7f800000u;
    }
  }
  return found;
}

// Merges the states of the warps, in order, and writes the rows.
template <class Shape, class M>
KVMESH_KERNEL_BODY void StoreTensorRows(M& m, const AttentionArgs& args, const AttentionTile& tile,
                                        TensorRows<Shape>& rows) {
  float* const states = reinterpret_cast<float*>(m.Shared());
  RowSum* const sums = reinterpret_cast<RowSum*>(states + Shape::kStates * Shape::kHeadDim);
  const int lane = m.Thread() % kWarpThreads, first_state = m.Thread() / kWarpThreads * 16;
  KVMESH_UNROLL
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sums[half].sum;
    sum += m.ShuffleXor(sum, 1);
    sum += m.ShuffleXor(sum, 2);
    const int state = first_state + SumElement(lane, half * 2).row;
    if (lane % 4 == 0) sums[state] = {rows.sums[half].highest, sum};
    KVMESH_UNROLL
    for (int n = 0; n < Shape::kHeadDim / 8; ++n) {
      KVMESH_UNROLL
      for (int j = 0; j < 2; ++j) {
        states[state * Shape::kHeadDim + n * 8 + SumElement(lane, j).column] = rows.out[n][half * 2 + j];
      }
    }
  }
  m.Sync();
  constexpr int kMerged = Shape::kSplit ? Shape::kWarps : 1;  // states of a row, 16 apart
  const int32_t group = args.group();
  for (int i = m.Thread(); i < tile.count * Shape::kHeadDim; i += Shape::kThreads) {
    const int row = i / Shape::kHeadDim, d = i % Shape::kHeadDim;
    RowSum total;
    for (int s = 0; s < kMerged; ++s) total.highest = std::fmax(total.highest, sums[row + s * 16].highest);
    const float from = total.highest == kEmptyLse ? 0.0f : total.highest;
    float value = 0;
    for (int s = 0; s < kMerged; ++s) {
      const RowSum& part = sums[row + s * 16];
      // Without keys a state's sum is 0, or a NaN that stays.
      const float weight = part.highest == kEmptyLse ? 1.0f : std::exp(part.highest - from);
      total.sum += part.sum * weight;
      value = std::fmaf(states[(row + s * 16) * Shape::kHeadDim + d], weight, value);
    }
    const int32_t head = tile.Head(row, group);
    const RowResult result = FinishRow(total, Shape::kSplit || args.sinks == nullptr ? kEmptyLse : args.sinks[head]);
    const int64_t index = Shape::kSplit ? args.Partial(tile.index, tile.Query(row, group), head, tile.span)
                                        : tile.Index(row, group, args.q_heads);
    float* const lse = Shape::kSplit ? args.partial_lse : args.lse;
    if (d == 0 && lse != nullptr) lse[index] = result.lse;
    if (d < args.value_dim) {
      (Shape::kSplit ? args.partial_out : args.out)[index * args.value_dim + d] = value * result.factor;
    }
  }
}

// Tiles start at multiples of kKeys positions, whatever the rows are, so that a row's result depends on its position
// and its keys alone: a tile of which it sees nothing leaves its bits as they are.
template <class Shape, class M>
KVMESH_KERNEL_BODY void TensorAttentionBody(M& m, const AttentionArgs& args) {
  const AttentionTile tile = TileOf<Shape::kSplit>(args, Shape::kRows, m.Block(0), m.Block(1));
  if (tile.count == 0) return;
  const int lane = m.Thread() % kWarpThreads, warp = m.Thread() / kWarpThreads;
  const int32_t group = args.group();
  const int warp_row = Shape::kSplit ? 0 : warp * 16, warp_key = Shape::kSplit ? warp * 16 : 0;
  TensorRows<Shape> rows;
  KVMESH_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + SumElement(lane, half * 2).row;
    if (row < tile.count) rows.seen[half] = VisibleKeys(tile.Position(row, group), args.window);
    rows.seen[half].begin = std::max(rows.seen[half].begin, tile.keys.begin);
    rows.seen[half].end = std::min(rows.seen[half].end, tile.keys.end);
  }
  // Keys that every row of the tile sees.
  const Keys common = {VisibleKeys(tile.Position(tile.count - 1, group), args.window).begin,
                       VisibleKeys(tile.Position(0, group), args.window).end};
  const bool rest = LoadQueries<Shape>(m, args, tile);

  const int64_t origin = tile.keys.begin / Shape::kKeys * Shape::kKeys;
  if (origin < tile.keys.end) LoadTile<Shape>(m, args, tile, origin, 0);
  m.CopyCommit();
  int stage = 0;
  for (int64_t first = origin; first < tile.keys.end; first += Shape::kKeys, stage = 1 - stage) {
    const int64_t next = first + Shape::kKeys;
    if (next < tile.keys.end) LoadTile<Shape>(m, args, tile, next, 1 - stage);
    m.CopyCommit();
    m.template CopyWait<1>();
    m.Sync();
    const float* const descales =
        reinterpret_cast<const float*>(m.Shared() + Shape::kDescales) + stage * 2 * Shape::kKeys;
    if constexpr (Shape::kOneByte) {
      ConvertTile<Shape>(m, stage);
      m.Sync();
    }
    // Only a tile that some row sees and another does not can spread what it should not. The same for all threads.
    const int64_t last = std::min(next, tile.keys.end);
    const bool mixed = std::max(first, tile.keys.begin) < common.begin || last > common.end;
    const bool by_key = mixed && m.SyncOr(HasNonFinite<Shape>(m, stage, descales));
    const std::byte* const values = TileAt<Shape>(m.Shared(), stage, 1, warp_key);
    float scores[Shape::kWarpKeys / 8][4];
    Scores<Shape>(m, warp_row, TileAt<Shape>(m.Shared(), stage, 0, warp_key), rest, scores);
    Weigh<Shape>(m, args, first + warp_key, descales + warp_key, scores, rows);
    if (by_key) {
      AddSeenValues<Shape>(m, first + warp_key, values, scores, rows);
    } else {
      AddValues<Shape>(m, values, scores, rows);
    }
    m.Sync();  // before the stage, or the converted tile, is written again
  }
  m.template CopyWait<0>();
  StoreTensorRows<Shape>(m, args, tile, rows);
}

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_TENSOR_ATTENTION_BODY_H_
