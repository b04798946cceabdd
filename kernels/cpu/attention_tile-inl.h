// The steps of attention over one tile of keys, for one Highway target per inclusion. Every step treats each row by the
// same chain of operations whichever rows stand beside it: that is what makes results row-invariant.
#if defined(KVMESH_KERNELS_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVMESH_KERNELS_CPU_ATTENTION_TILE_INL_H_
#undef KVMESH_KERNELS_CPU_ATTENTION_TILE_INL_H_
#else
#define KVMESH_KERNELS_CPU_ATTENTION_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvmesh::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, kPartials>;
using VecF = hn::Vec<F>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(F()));
// Vectors of one row that a register block holds: 32 registers on AVX-512, 16 elsewhere.
inline constexpr int kWide = kLanes == 16 ? 4 : 2;

// Four floats of each of the tokens rows[0], rows[4], rows[8].. side by side, from `offset` on.
template <class D>
HWY_INLINE hn::Vec<D> LoadQuads(D d, const float* const* rows, int offset) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, rows[0] + offset);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, LoadQuads(half, rows + hn::MaxLanes(half), offset), LoadQuads(half, rows, offset));
  }
}

// keys[k][j] = rows[j][k] for the keys j of whole vectors that meet `range`. head_dim is a multiple of 4.
inline void TransposeKeys(const float* const* rows, int head_dim, TileRange range, float* HWY_RESTRICT keys) {
  const F d;
  for (int j = range.begin / kLanes * kLanes; j < range.end; j += kLanes) {
    for (int k = 0; k < head_dim; k += 4) {
      const VecF a = LoadQuads(d, rows + j, k);
      const VecF b = LoadQuads(d, rows + j + 1, k);
      const VecF c = LoadQuads(d, rows + j + 2, k);
      const VecF e = LoadQuads(d, rows + j + 3, k);
      const VecF ac_low = hn::InterleaveLower(d, a, c);
      const VecF ac_high = hn::InterleaveUpper(d, a, c);
      const VecF be_low = hn::InterleaveLower(d, b, e);
      const VecF be_high = hn::InterleaveUpper(d, b, e);
      float* out = keys + k * kTile + j;
      hn::Store(hn::InterleaveLower(d, ac_low, be_low), d, out);
      hn::Store(hn::InterleaveUpper(d, ac_low, be_low), d, out + kTile);
      hn::Store(hn::InterleaveLower(d, ac_high, be_high), d, out + 2 * kTile);
      hn::Store(hn::InterleaveUpper(d, ac_high, be_high), d, out + 3 * kTile);
    }
  }
}

// scores[r][j] = query[r] . keys[.][j], summed in the order of head_dim, for the vectors that meet `range`.
template <int kR>
HWY_INLINE void ScoreRows(const float* HWY_RESTRICT query, int head_dim, const float* HWY_RESTRICT keys,
                          TileRange range, float* HWY_RESTRICT scores) {
  const F d;
  constexpr int kStep = kWide * kLanes;
  for (int j = range.begin / kStep * kStep; j < range.end; j += kStep) {
    VecF acc[kR][kWide];
    for (int r = 0; r < kR; ++r) {
      for (int w = 0; w < kWide; ++w) acc[r][w] = hn::Zero(d);
    }
    for (int k = 0; k < head_dim; ++k) {
      VecF key[kWide];
      for (int w = 0; w < kWide; ++w) key[w] = hn::Load(d, keys + k * kTile + j + w * kLanes);
      for (int r = 0; r < kR; ++r) {
        const VecF q = hn::Set(d, query[r * head_dim + k]);
        for (int w = 0; w < kWide; ++w) acc[r][w] = hn::MulAdd(q, key[w], acc[r][w]);
      }
    }
    for (int r = 0; r < kR; ++r) {
      for (int w = 0; w < kWide; ++w) hn::Store(acc[r][w], d, scores + r * kTile + j + w * kLanes);
    }
  }
}

// Calls visit(offset, mask) for each vector of a tile that meets `range`; `mask` selects the lanes inside it.
template <class Visit>
HWY_INLINE void ForRange(TileRange range, Visit visit) {
  const F d;
  for (int j = range.begin / kLanes * kLanes; j < range.end; j += kLanes) {
    const auto below_end = hn::FirstN(d, static_cast<size_t>(std::min(range.end - j, kLanes)));
    const auto below_begin = hn::FirstN(d, static_cast<size_t>(std::clamp(range.begin - j, 0, kLanes)));
    visit(j, hn::AndNot(below_begin, below_end));
  }
}

// Applies scores = cap * tanh(scores), and returns the highest score of `range`. cap 0: scores stay.
HWY_INLINE float HighestScore(float* HWY_RESTRICT scores, TileRange range, float cap) {
  const F d;
  const VecF lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  VecF highest = lowest;
  const auto take = [&](int j) HWY_ATTR {
    VecF s = hn::Load(d, scores + j);
    if (cap > 0) {
      s = hn::Mul(hn::Set(d, cap), Tanh(d, s));
      hn::Store(s, d, scores + j);
    }
    return s;
  };
  if (range.begin == 0 && range.end == kTile) {
    for (int j = 0; j < kTile; j += kLanes) highest = hn::Max(highest, take(j));
  } else {
    ForRange(range,
             [&](int j, auto mask) HWY_ATTR { highest = hn::Max(highest, hn::IfThenElse(mask, take(j), lowest)); });
  }
  return hn::GetLane(hn::MaxOfLanes(d, highest));
}

// What weights are relative to: the highest score, or anything finite while all scores are -infinity.
HWY_INLINE float Base(float highest) { return highest == -std::numeric_limits<float>::infinity() ? 0.0f : highest; }

// scores -> weights 2^(score - base) inside `range`; sums = sums * rescale + weights.
HWY_INLINE void Weigh(float* HWY_RESTRICT scores, TileRange range, float base, float rescale,
                      float* HWY_RESTRICT sums) {
  const F d;
  const VecF shift = hn::Set(d, base);
  const VecF factor = hn::Set(d, rescale);
  for (int i = 0; i < kPartials; i += kLanes) hn::Store(hn::Mul(hn::Load(d, sums + i), factor), d, sums + i);
  if (range.begin == 0 && range.end == kTile) {
    for (int j = 0; j < kTile; j += kLanes) {
      const VecF weight = Exp2(d, hn::Sub(hn::Load(d, scores + j), shift));
      hn::Store(weight, d, scores + j);
      float* sum = sums + j % kPartials;
      hn::Store(hn::Add(hn::Load(d, sum), weight), d, sum);
    }
  } else {
    ForRange(range, [&](int j, auto mask) HWY_ATTR {
      const VecF weight = hn::IfThenElseZero(mask, Exp2(d, hn::Sub(hn::Load(d, scores + j), shift)));
      hn::Store(weight, d, scores + j);
      float* sum = sums + j % kPartials;
      hn::Store(hn::Add(hn::Load(d, sum), weight), d, sum);
    });
  }
}

// acc[r][column..] += weights[r][j] * values[j][column..] for j in [begin, end), in order.
template <int kR, int kW>
HWY_INLINE void AddColumns(const float* HWY_RESTRICT weights, const float* const* values, TileRange range, int column,
                           int dim, float* HWY_RESTRICT acc) {
  const F d;
  VecF sum[kR][kW];
  for (int r = 0; r < kR; ++r) {
    for (int w = 0; w < kW; ++w) sum[r][w] = hn::Load(d, acc + r * dim + column + w * kLanes);
  }
  for (int j = range.begin; j < range.end; ++j) {
    const float* value = values[j] + column;
    VecF v[kW];
    for (int w = 0; w < kW; ++w) v[w] = hn::LoadU(d, value + w * kLanes);
    for (int r = 0; r < kR; ++r) {
      const VecF weight = hn::Set(d, weights[r * kTile + j]);
      for (int w = 0; w < kW; ++w) sum[r][w] = hn::MulAdd(weight, v[w], sum[r][w]);
    }
  }
  for (int r = 0; r < kR; ++r) {
    for (int w = 0; w < kW; ++w) hn::Store(sum[r][w], d, acc + r * dim + column + w * kLanes);
  }
}

template <int kR>
HWY_INLINE void AddValues(const float* HWY_RESTRICT weights, const float* const* values, TileRange range, int dim,
                          float* HWY_RESTRICT acc) {
  if (range.begin >= range.end) return;
  int column = 0;
  for (; column + kWide * kLanes <= dim; column += kWide * kLanes) {
    AddColumns<kR, kWide>(weights, values, range, column, dim, acc);
  }
  for (; column + 2 * kLanes <= dim; column += 2 * kLanes) AddColumns<kR, 2>(weights, values, range, column, dim, acc);
  for (; column < dim; column += kLanes) AddColumns<kR, 1>(weights, values, range, column, dim, acc);
}

// The weighted values of kR rows: keys that all of them see together, the others row by row; ascending for each row.
template <int kR>
HWY_INLINE void AddRows(const float* HWY_RESTRICT weights, const TileRange* ranges, const float* const* values, int dim,
                        float* HWY_RESTRICT acc) {
  TileRange common = ranges[0];
  for (int r = 1; r < kR; ++r) {
    common.begin = std::max(common.begin, ranges[r].begin);
    common.end = std::min(common.end, ranges[r].end);
  }
  common.end = std::max(common.end, common.begin);
  for (int r = 0; kR > 1 && r < kR; ++r) {
    const TileRange before = {ranges[r].begin, std::min(common.begin, ranges[r].end)};
    AddValues<1>(weights + r * kTile, values, before, dim, acc + r * dim);
  }
  AddValues<kR>(weights, values, common, dim, acc);
  for (int r = 0; kR > 1 && r < kR; ++r) {
    const TileRange after = {std::max(common.end, ranges[r].begin), ranges[r].end};
    AddValues<1>(weights + r * kTile, values, after, dim, acc + r * dim);
  }
}

// Calls visit.operator()<rows>(first row) for the rows [begin, end), four, two or one at a time.
template <class Visit>
HWY_INLINE void ForRows(int begin, int end, Visit visit) {
  int r = begin;
  for (; r + 4 <= end; r += 4) visit.template operator()<4>(r);
  for (; r + 2 <= end; r += 2) visit.template operator()<2>(r);
  for (; r < end; ++r) visit.template operator()<1>(r);
}

// All steps for the rows [begin, end) of the block, whose ranges in this tile are not empty; `seen` covers them.
// Keys and values are in place. `cap` is the soft cap in log2 units, or 0.
inline void AttendTile(AttentionScratch& s, int begin, int end, TileRange seen, int head_dim, int dim, float cap) {
  const F d;
  TransposeKeys(s.key_rows, head_dim, seen, s.keys);
  ForRows(begin, end, [&]<int kR>(int r) HWY_ATTR {
    ScoreRows<kR>(s.query + r * head_dim, head_dim, s.keys, seen, s.scores + r * kTile);
  });
  for (int r = begin; r < end; ++r) {
    const float highest = std::max(s.highest[r], HighestScore(s.scores + r * kTile, s.ranges[r], cap));
    s.rescale[r] = s.highest[r] - Base(highest);
    s.highest[r] = highest;
  }
  for (int r = begin / kLanes * kLanes; r < end; r += kLanes) {
    hn::Store(Exp2(d, hn::Load(d, s.rescale + r)), d, s.rescale + r);
  }
  for (int r = begin; r < end; ++r) {
    Weigh(s.scores + r * kTile, s.ranges[r], Base(s.highest[r]), s.rescale[r], s.sums + r * kPartials);
    if (s.rescale[r] == 1.0f) continue;
    const VecF factor = hn::Set(d, s.rescale[r]);
    float* acc = s.acc + r * dim;
    for (int k = 0; k < dim; k += kLanes) hn::Store(hn::Mul(hn::Load(d, acc + k), factor), d, acc + k);
  }
  ForRows(begin, end, [&]<int kR>(int r) HWY_ATTR {
    AddRows<kR>(s.scores + r * kTile, s.ranges + r, s.value_rows, dim, s.acc + r * dim);
  });
}

}  // namespace kvmesh::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVMESH_KERNELS_CPU_ATTENTION_TILE_INL_H_
