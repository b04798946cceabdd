// Scores of query rows against the keys of a tile, for one Highway target per inclusion.
#if defined(KVMESH_KERNELS_CPU_ATTENTION_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVMESH_KERNELS_CPU_ATTENTION_SCORE_INL_H_
#undef KVMESH_KERNELS_CPU_ATTENTION_SCORE_INL_H_
#else
#define KVMESH_KERNELS_CPU_ATTENTION_SCORE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_scratch.h"

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

}  // namespace kvmesh::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVMESH_KERNELS_CPU_ATTENTION_SCORE_INL_H_
