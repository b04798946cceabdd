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
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cpu/attention_score-inl.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvmesh::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

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

// One vector of a row of values, from element `column` on.
template <bool kBf16>
HWY_INLINE VecF LoadValues(const std::byte* row, int column) {
  const F d;
  if constexpr (kBf16) {
    const hn::Rebind<uint16_t, F> d16;
    const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(row) + column);
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<F>(), bits)));
  } else {
    return hn::LoadU(d, reinterpret_cast<const float*>(row) + column);
  }
}

// acc[r][column..] += weights[r][j] * values[j][column..] for j in `range`, in order.
template <bool kBf16, int kR, int kW>
HWY_INLINE void AddColumns(const float* HWY_RESTRICT weights, const std::byte* const* values, TileRange range,
                           int column, int dim, float* HWY_RESTRICT acc) {
  const F d;
  VecF sum[kR][kW];
  for (int r = 0; r < kR; ++r) {
    for (int w = 0; w < kW; ++w) sum[r][w] = hn::Load(d, acc + r * dim + column + w * kLanes);
  }
  for (int j = range.begin; j < range.end; ++j) {
    VecF v[kW];
    for (int w = 0; w < kW; ++w) v[w] = LoadValues<kBf16>(values[j], column + w * kLanes);
    for (int r = 0; r < kR; ++r) {
      const VecF weight = hn::Set(d, weights[r * kTile + j]);
      for (int w = 0; w < kW; ++w) sum[r][w] = hn::MulAdd(weight, v[w], sum[r][w]);
    }
  }
  for (int r = 0; r < kR; ++r) {
    for (int w = 0; w < kW; ++w) hn::Store(sum[r][w], d, acc + r * dim + column + w * kLanes);
  }
}

template <bool kBf16, int kR>
HWY_INLINE void AddValues(const float* HWY_RESTRICT weights, const std::byte* const* values, TileRange range, int dim,
                          float* HWY_RESTRICT acc) {
  if (range.begin >= range.end) return;
  constexpr int kMost = kWide<kR>;
  int column = 0;
  const auto add = [&]<int kW>() HWY_ATTR {
    for (; column + kW * kLanes <= dim; column += kW * kLanes) {
      AddColumns<kBf16, kR, kW>(weights, values, range, column, dim, acc);
    }
  };
  add.template operator()<kMost>();
  if constexpr (kMost > 4) add.template operator()<4>();
  if constexpr (kMost > 2) add.template operator()<2>();
  add.template operator()<1>();
}

// The weighted values of kR rows: keys that all of them see together, the others row by row; ascending for each row.
template <bool kBf16, int kR>
HWY_INLINE void AddRows(const float* HWY_RESTRICT weights, const TileRange* ranges, const std::byte* const* values,
                        int dim, float* HWY_RESTRICT acc) {
  TileRange common = ranges[0];
  for (int r = 1; r < kR; ++r) {
    common.begin = std::max(common.begin, ranges[r].begin);
    common.end = std::min(common.end, ranges[r].end);
  }
  common.end = std::max(common.end, common.begin);
  for (int r = 0; kR > 1 && r < kR; ++r) {
    const TileRange before = {ranges[r].begin, std::min(common.begin, ranges[r].end)};
    AddValues<kBf16, 1>(weights + r * kTile, values, before, dim, acc + r * dim);
  }
  AddValues<kBf16, kR>(weights, values, common, dim, acc);
  for (int r = 0; kR > 1 && r < kR; ++r) {
    const TileRange after = {std::max(common.end, ranges[r].begin), ranges[r].end};
    AddValues<kBf16, 1>(weights + r * kTile, values, after, dim, acc + r * dim);
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

// What the rows [begin, end) of a block do with the tile whose rows of keys and values the scratch points at.
struct TileJob {
  int begin;  // each row of the run sees some key of the tile
  int end;
  TileRange seen;  // covers what they see
  int head_dim;
  int dim;
  float cap;         // soft cap in log2 units, or 0
  bool bf16_keys;    // else fp32
  bool bf16_values;  // else fp32
};

// Scratch is AttentionScratch, or what has the same members for rows of another length.
// A slice of the head's elements at a time, so that the transposed keys stay in the first-level cache.
template <class Scratch>
void ScoreTile(const TileJob& job, Scratch& s) {
  for (int k = 0; k < job.head_dim; k += kSlice) {
    const int count = std::min(kSlice, job.head_dim - k);
    if (job.bf16_keys) {
      TransposeKeys<true>(s.key_rows, k, count, job.seen, s.keys);
    } else {
      TransposeKeys<false>(s.key_rows, k, count, job.seen, s.keys);
    }
    ForRows(job.begin, job.end, [&]<int kR>(int r) HWY_ATTR {
      ScoreRows<kR>(s.query + r * job.head_dim + k, job.head_dim, count, s.keys, job.seen, k == 0,
                    s.scores + r * kTile);
    });
  }
}

// Scores become weights; what was summed before is brought to the new base.
template <class Scratch>
void WeighTile(const TileJob& job, Scratch& s) {
  const F d;
  for (int r = job.begin; r < job.end; ++r) {
    const float highest = std::max(s.highest[r], HighestScore(s.scores + r * kTile, s.ranges[r], job.cap));
    s.rescale[r] = s.highest[r] - Base(highest);
    s.highest[r] = highest;
  }
  for (int r = job.begin / kLanes * kLanes; r < job.end; r += kLanes) {
    hn::Store(Exp2(d, hn::Load(d, s.rescale + r)), d, s.rescale + r);
  }
  for (int r = job.begin; r < job.end; ++r) {
    Weigh(s.scores + r * kTile, s.ranges[r], Base(s.highest[r]), s.rescale[r], s.sums + r * kPartials);
    if (s.rescale[r] == 1.0f) continue;
    const VecF factor = hn::Set(d, s.rescale[r]);
    float* acc = s.acc + r * job.dim;
    for (int k = 0; k < job.dim; k += kLanes) hn::Store(hn::Mul(hn::Load(d, acc + k), factor), d, acc + k);
  }
}

template <class Scratch>
void AttendTile(const TileJob& job, Scratch& s) {
  ScoreTile(job, s);
  WeighTile(job, s);
  ForRows(job.begin, job.end, [&]<int kR>(int r) HWY_ATTR {
    if (job.bf16_values) {
      AddRows<true, kR>(s.scores + r * kTile, s.ranges + r, s.value_rows, job.dim, s.acc + r * job.dim);
    } else {
      AddRows<false, kR>(s.scores + r * kTile, s.ranges + r, s.value_rows, job.dim, s.acc + r * job.dim);
    }
  });
}

}  // namespace kvmesh::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVMESH_KERNELS_CPU_ATTENTION_TILE_INL_H_
