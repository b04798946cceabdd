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

#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvmesh::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F = hn::CappedTag<float, kPartials>;
using VecF = hn::Vec<F>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(F()));
// Vectors of one row that a register block of kR rows holds. There are 32 registers on AVX-512, 16 elsewhere.
template <int kR>
inline constexpr int kWide = kLanes < 16 ? 2
                             : kR == 1   ? 8
                                         : 4;

// Four 32-bit words of each of the keys rows[0], rows[4], rows[8].. side by side, from word `word` on.
template <class D>
HWY_INLINE hn::Vec<D> LoadQuads(D d, const std::byte* const* rows, int word) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, reinterpret_cast<const float*>(rows[0]) + word);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, LoadQuads(half, rows + hn::MaxLanes(half), word), LoadQuads(half, rows, word));
  }
}

// Stores what word `word` of each key of one vector holds: an element of fp32, or two of bf16.
template <bool kBf16>
HWY_INLINE void StoreWord(VecF words, int word, float* HWY_RESTRICT keys) {
  const F d;
  if constexpr (kBf16) {
    const hn::RebindToUnsigned<F> du;
    const auto bits = hn::BitCast(du, words);
    hn::Store(hn::BitCast(d, hn::ShiftLeft<16>(bits)), d, keys + 2 * word * kTile);
    hn::Store(hn::BitCast(d, hn::And(bits, hn::Set(du, 0xffff0000u))), d, keys + (2 * word + 1) * kTile);
  } else {
    hn::Store(words, d, keys + word * kTile);
  }
}

// keys[k][j] = element first + k of rows[j] as fp32, for k in [0, count) and the keys j of whole vectors that meet
// `range`. Rows are fp32 or bf16; first and count are multiples of 8.
template <bool kBf16>
HWY_INLINE void TransposeKeys(const std::byte* const* rows, int first, int count, TileRange range,
                              float* HWY_RESTRICT keys) {
  const F d;
  const int skip = kBf16 ? first / 2 : first;
  const int words = kBf16 ? count / 2 : count;
  for (int j = range.begin / kLanes * kLanes; j < range.end; j += kLanes) {
    for (int k = 0; k < words; k += 4) {
      const VecF a = LoadQuads(d, rows + j, skip + k);
      const VecF b = LoadQuads(d, rows + j + 1, skip + k);
      const VecF c = LoadQuads(d, rows + j + 2, skip + k);
      const VecF e = LoadQuads(d, rows + j + 3, skip + k);
      const VecF ac_low = hn::InterleaveLower(d, a, c);
      const VecF ac_high = hn::InterleaveUpper(d, a, c);
      const VecF be_low = hn::InterleaveLower(d, b, e);
      const VecF be_high = hn::InterleaveUpper(d, b, e);
      StoreWord<kBf16>(hn::InterleaveLower(d, ac_low, be_low), k, keys + j);
      StoreWord<kBf16>(hn::InterleaveUpper(d, ac_low, be_low), k + 1, keys + j);
      StoreWord<kBf16>(hn::InterleaveLower(d, ac_high, be_high), k + 2, keys + j);
      StoreWord<kBf16>(hn::InterleaveUpper(d, ac_high, be_high), k + 3, keys + j);
    }
  }
}

// scores[r][j] += query[r][k] * keys[k][j] for k in [0, count), in order, for the vectors that meet `range`; `fresh`
// scores start from 0. Rows of `query` are `stride` apart.
template <int kR>
HWY_INLINE void ScoreRows(const float* HWY_RESTRICT query, int stride, int count, const float* HWY_RESTRICT keys,
                          TileRange range, bool fresh, float* HWY_RESTRICT scores) {
  const F d;
  constexpr int kW = std::min(kWide<kR>, kTile / kLanes);
  constexpr int kStep = kW * kLanes;
  for (int j = range.begin / kStep * kStep; j < range.end; j += kStep) {
    VecF acc[kR][kW];
    for (int r = 0; r < kR; ++r) {
      for (int w = 0; w < kW; ++w) {
        acc[r][w] = fresh ? hn::Zero(d) : hn::Load(d, scores + r * kTile + j + w * kLanes);
      }
    }
    for (int k = 0; k < count; ++k) {
      VecF key[kW];
      for (int w = 0; w < kW; ++w) key[w] = hn::Load(d, keys + k * kTile + j + w * kLanes);
      for (int r = 0; r < kR; ++r) {
        const VecF q = hn::Set(d, query[r * stride + k]);
        for (int w = 0; w < kW; ++w) acc[r][w] = hn::MulAdd(q, key[w], acc[r][w]);
      }
    }
    for (int r = 0; r < kR; ++r) {
      for (int w = 0; w < kW; ++w) hn::Store(acc[r][w], d, scores + r * kTile + j + w * kLanes);
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

// A slice of the head's elements at a time, so that the transposed keys stay in the first-level cache.
inline void ScoreTile(const TileJob& job, AttentionScratch& s) {
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
inline void WeighTile(const TileJob& job, AttentionScratch& s) {
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

inline void AttendTile(const TileJob& job, AttentionScratch& s) {
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
