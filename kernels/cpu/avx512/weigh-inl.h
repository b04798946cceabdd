// Scores of query rows become weights.
#ifndef KVMESH_KERNELS_CPU_AVX512_WEIGH_INL_H_
#define KVMESH_KERNELS_CPU_AVX512_WEIGH_INL_H_

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/avx512/math-inl.h"
#include "kernels/cpu/avx512/scratch.h"
#include "kernels/cpu/avx512/target.h"

KVMESH_AVX512_BEGIN
namespace kvmesh::avx512 {

// Largest multiple of the unit that int8's weights are counted in: two digits in base 256.
inline constexpr float kWeightSteps = 65535;

// Weights of 64 keys as what AddValues multiplies by; seen: a bit for each key that the row sees.
template <Stored kStored>
KVMESH_AVX512_INLINE void StoreWeights(const __m512 (&weight)[4], [[maybe_unused]] const TileRows& rows,
                                       [[maybe_unused]] uint64_t seen, int row, Scratch& s) {
  float* to = s.weights[row];
  if constexpr (kStored == Stored::kF32) {
    for (int i = 0; i < 4; ++i) _mm512_store_ps(to + 16 * i, weight[i]);
  } else if constexpr (kStored == Stored::kBf16) {
    const Bf16Digits a = SplitBf16(weight[0], weight[1]), b = SplitBf16(weight[2], weight[3]);
    _mm512_store_si512(to, a.high);
    _mm512_store_si512(to + 16, b.high);
    _mm512_store_si512(to + 32, a.low);
    _mm512_store_si512(to + 48, b.low);
  } else {
    __m512 scaled[4], highest = _mm512_setzero_ps();
    bool finite = true;
    KVMESH_UNROLL
    for (int i = 0; i < 4; ++i) {
      scaled[i] = _mm512_maskz_mul_ps(static_cast<__mmask16>(seen >> (16 * i)), weight[i],
                                      _mm512_load_ps(rows.value_descale + 16 * i));
      finite = finite && _mm512_cmp_ps_mask(scaled[i], _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ) == 0xffff;
      highest = _mm512_max_ps(highest, scaled[i]);
    }
    const float most = _mm512_reduce_max_ps(highest);
    const bool counts = finite && most > 1e-30f;
    const __m512 steps = _mm512_set1_ps(counts ? kWeightSteps / most : 0.0f);
    s.weight_scale[row] = !finite ? __builtin_nanf("") : counts ? most / kWeightSteps : 0.0f;
    __m512i high[4], low[4];
    KVMESH_UNROLL
    for (int i = 0; i < 4; ++i) {
      low[i] = counts ? _mm512_cvtps_epi32(_mm512_mul_ps(scaled[i], steps)) : _mm512_setzero_si512();
      high[i] = _mm512_srli_epi32(low[i], 8);
    }
    _mm512_store_si512(to, PackBytes(high));
    _mm512_store_si512(to + 16, PackBytes(low));
  }
}

// Scores of a row become weights, relative to the highest score so far. cap: soft cap in log2 units, or 0.
template <Stored kStored>
KVMESH_AVX512_INLINE void WeighRow(const TileRows& rows, int row, TileRange range, float cap, Scratch& s) {
  const uint64_t seen = (~uint64_t{0} >> (kTile - range.end)) & (~uint64_t{0} << range.begin);
  const __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  __m512 score[4], most = lowest;
  KVMESH_UNROLL
  for (int i = 0; i < 4; ++i) {
    const __mmask16 sees = static_cast<__mmask16>(seen >> (16 * i));
    if constexpr (kStored == Stored::kInt8) {
      const __m512i whole =
          _mm512_sub_epi32(_mm512_maskz_load_epi32(sees, s.scores[row] + 16 * i), _mm512_set1_epi32(s.query_bias[row]));
      const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_set1_ps(s.query_scale[row]));
      score[i] = _mm512_mask_mul_ps(lowest, sees, scaled, _mm512_load_ps(rows.key_descale + 16 * i));
    } else {
      score[i] = _mm512_mask_load_ps(lowest, sees, s.scores[row] + 16 * i);
    }
  }
  if (cap > 0) {
    KVMESH_UNROLL
    for (int i = 0; i < 4; ++i) {
      score[i] =
          _mm512_mask_mul_ps(lowest, static_cast<__mmask16>(seen >> (16 * i)), _mm512_set1_ps(cap), Tanh(score[i]));
    }
  }
  KVMESH_UNROLL
  for (int i = 0; i < 4; ++i) most = _mm512_max_ps(most, score[i]);
  const float before = s.highest[row];
  const float highest = std::max(before, _mm512_reduce_max_ps(most));
  // What weights are relative to: anything finite while all scores are -infinity.
  const float base = highest == -std::numeric_limits<float>::infinity() ? 0.0f : highest;
  const float rescale = before == base ? 1.0f : _mm512_cvtss_f32(Exp2(_mm512_set1_ps(before - base)));
  __m512 weight[4], sum = _mm512_mul_ps(_mm512_load_ps(s.sums[row]), _mm512_set1_ps(rescale));
  KVMESH_UNROLL
  for (int i = 0; i < 4; ++i) {
    weight[i] = _mm512_maskz_mov_ps(static_cast<__mmask16>(seen >> (16 * i)),
                                    Exp2(_mm512_sub_ps(score[i], _mm512_set1_ps(base))));
    sum = _mm512_add_ps(sum, weight[i]);
  }
  _mm512_store_ps(s.sums[row], sum);
  s.highest[row] = highest;
  s.rescale[row] = rescale;
  StoreWeights<kStored>(weight, rows, seen, row, s);
}

}  // namespace kvmesh::avx512
KVMESH_AVX512_END

#endif  // KVMESH_KERNELS_CPU_AVX512_WEIGH_INL_H_
