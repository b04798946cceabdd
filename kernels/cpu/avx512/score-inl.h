// Scores of query rows against the keys of a tile: the rows of four keys are interleaved, so that a lane of a vector
// holds the same elements of four keys, and multiplied by vectors that hold the query's four times.
#ifndef KVMESH_KERNELS_CPU_AVX512_SCORE_INL_H_
#define KVMESH_KERNELS_CPU_AVX512_SCORE_INL_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/avx512/math-inl.h"
#include "kernels/cpu/avx512/scratch.h"
#include "kernels/cpu/avx512/target.h"

KVMESH_AVX512_BEGIN
namespace kvmesh::avx512 {

// part[i]: elements 4L + i, in units of 32 bits, of four rows side by side in lane L. `at`: byte offset in the rows.
KVMESH_AVX512_INLINE void LoadParts(const std::byte* const* rows, int64_t at, __m512i (&part)[4]) {
  const __m512i a = _mm512_loadu_si512(rows[0] + at), b = _mm512_loadu_si512(rows[1] + at);
  const __m512i c = _mm512_loadu_si512(rows[2] + at), d = _mm512_loadu_si512(rows[3] + at);
  const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
  const __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
  part[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
  part[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
  part[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
  part[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

// The sum over the lanes of each of four vectors, side by side.
KVMESH_AVX512_INLINE __m512 SumLanes(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x88), _mm512_shuffle_f32x4(c, d, 0xdd));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}
KVMESH_AVX512_INLINE __m512i SumLanes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  const __m512i cd = _mm512_add_epi32(_mm512_shuffle_i32x4(c, d, 0x88), _mm512_shuffle_i32x4(c, d, 0xdd));
  return _mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
}

// Sums of one query row over four keys.
template <Stored kStored>
struct Dots;

template <>
struct Dots<Stored::kF32> {
  static constexpr int kDigits = 1;
  using Total = __m512;
  __m512 sum;

  KVMESH_AVX512_INLINE void Clear() { sum = _mm512_setzero_ps(); }
  KVMESH_AVX512_INLINE __m512 Sum() const { return sum; }
  KVMESH_AVX512_INLINE void Add(__m512i keys, const std::byte* query) {
    sum = _mm512_fmadd_ps(_mm512_castsi512_ps(keys), _mm512_load_ps(query), sum);
  }
};

template <>
struct Dots<Stored::kBf16> {
  static constexpr int kDigits = 2;
  using Total = __m512;
  __m512 sum;

  KVMESH_AVX512_INLINE void Clear() { sum = _mm512_setzero_ps(); }
  KVMESH_AVX512_INLINE __m512 Sum() const { return sum; }
  KVMESH_AVX512_INLINE void Add(__m512i keys, const std::byte* query) {
    sum = AddDotBf16(sum, keys, _mm512_load_si512(query));
    sum = AddDotBf16(sum, keys, _mm512_load_si512(query + kVector));
  }
};

template <>
struct Dots<Stored::kInt8> {
  static constexpr int kDigits = 2;
  using Total = __m512i;
  __m512i high;
  __m512i low;

  KVMESH_AVX512_INLINE void Clear() { high = low = _mm512_setzero_si512(); }
  KVMESH_AVX512_INLINE __m512i Sum() const { return _mm512_add_epi32(_mm512_slli_epi32(high, 7), low); }
  KVMESH_AVX512_INLINE void Add(__m512i keys, const std::byte* query) {
    high = AddDotBytes(high, keys, _mm512_load_si512(query));
    low = AddDotBytes(low, keys, _mm512_load_si512(query + kVector));
  }
};

// Asks for the cache lines of some rows, four with each call: fp32 rows, the longest ones, in the order of memory,
// which memory likes best; others at the offset that the caller multiplies, which costs least.
template <Stored kStored>
struct RowPrefetch {
  const std::byte* const* rows;
  int64_t bytes;  // of a row
  int64_t at = 0;

  KVMESH_AVX512_INLINE void Four(const std::byte* const* four, int64_t offset) {
    KVMESH_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (kStored == Stored::kF32) {
        _mm_prefetch(reinterpret_cast<const char*>(*rows + at), _MM_HINT_T0);
        at += kVector;
        const bool row_ends = at == bytes;
        at = row_ends ? 0 : at;
        rows += row_ends;
      } else {
        _mm_prefetch(reinterpret_cast<const char*>(four[i] + offset), _MM_HINT_T0);
      }
    }
  }
};

// Scores of kR rows from `row` on, for the vectors of keys that meet `range`. columns: vectors of a key's row. next:
// keys that are wanted soon.
template <Stored kStored, int kR>
KVMESH_AVX512_INLINE void ScoreRows(const TileRows& rows, const std::byte* const* next, int row, int columns,
                                    TileRange range, Scratch& s) {
  constexpr int kStep = Dots<kStored>::kDigits * kVector;
  const int64_t stride = s.query_stride;
  const std::byte* query = s.Query(row);
  // Keys at a time, in fours, so that the sums stay in registers.
  constexpr int kQuads = kStored == Stored::kInt8 && kR == 4 ? 2 : 4;
  for (int j = range.begin / 16 * 16; j < range.end; j += 16) {
    typename Dots<kStored>::Total total[kR][4];
    KVMESH_UNROLL
    for (int part = 0; part < 4; part += kQuads) {
      RowPrefetch<kStored> prefetch = {next + j + 4 * part, int64_t{columns} * kVector};
      Dots<kStored> dots[kR][kQuads];
      KVMESH_UNROLL
      for (int r = 0; r < kR; ++r) {
        KVMESH_UNROLL
        for (int q = 0; q < kQuads; ++q) dots[r][q].Clear();
      }
      for (int column = 0; column < columns; ++column) {
        KVMESH_UNROLL
        for (int q = 0; q < kQuads; ++q) {
          const int key = j + 4 * (part + q);
          __m512i words[4];
          LoadParts(rows.key + key, int64_t{column} * kVector, words);
          prefetch.Four(next + key, int64_t{column} * kVector);
          KVMESH_UNROLL
          for (int i = 0; i < 4; ++i) {
            // The dot product takes unsigned keys: what the offset adds is in query_bias.
            if constexpr (kStored == Stored::kInt8) words[i] = _mm512_xor_si512(words[i], _mm512_set1_epi8(-128));
            KVMESH_UNROLL
            for (int r = 0; r < kR; ++r) dots[r][q].Add(words[i], query + r * stride + (column * 4 + i) * kStep);
          }
        }
      }
      KVMESH_UNROLL
      for (int r = 0; r < kR; ++r) {
        KVMESH_UNROLL
        for (int q = 0; q < kQuads; ++q) total[r][part + q] = dots[r][q].Sum();
      }
    }
    KVMESH_UNROLL
    for (int r = 0; r < kR; ++r) {
      const auto sum = SumLanes(total[r][0], total[r][1], total[r][2], total[r][3]);
      if constexpr (kStored == Stored::kInt8) {
        const __m512 score = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_set1_epi32(s.query_bias[row + r])));
        const __m512 scaled = _mm512_mul_ps(score, _mm512_set1_ps(s.query_scale[row + r]));
        _mm512_store_ps(s.scores[row + r] + j, _mm512_mul_ps(scaled, _mm512_load_ps(rows.key_descale + j)));
      } else {
        _mm512_store_ps(s.scores[row + r] + j, sum);
      }
    }
  }
}

// Lays out 16 * PerWord elements of a query, from element `first` on, as Scratch::query has them.
template <Stored kStored>
KVMESH_AVX512_INLINE void StoreQuery(__m512i digits, int column, int digit, std::byte* query) {
  std::byte* to = query + (column * 4 * Dots<kStored>::kDigits + digit) * kVector;
  constexpr int kStep = Dots<kStored>::kDigits * kVector;
  _mm512_store_si512(to, _mm512_shuffle_epi32(digits, _MM_PERM_AAAA));
  _mm512_store_si512(to + kStep, _mm512_shuffle_epi32(digits, _MM_PERM_BBBB));
  _mm512_store_si512(to + 2 * kStep, _mm512_shuffle_epi32(digits, _MM_PERM_CCCC));
  _mm512_store_si512(to + 3 * kStep, _mm512_shuffle_epi32(digits, _MM_PERM_DDDD));
}

// Largest multiple of the unit that an int8 query is counted in: two digits in base 128.
inline constexpr float kQuerySteps = 127 * 128;

// 64 elements, 16 in each of four vectors of 32-bit integers, as bytes in order.
KVMESH_AVX512_INLINE __m512i PackBytes(const __m512i (&words)[4]) {
  __m512i out = _mm512_castsi128_si512(_mm512_cvtepi32_epi8(words[0]));
  out = _mm512_inserti32x4(out, _mm512_cvtepi32_epi8(words[1]), 1);
  out = _mm512_inserti32x4(out, _mm512_cvtepi32_epi8(words[2]), 2);
  return _mm512_inserti32x4(out, _mm512_cvtepi32_epi8(words[3]), 3);
}

// The int8 form of a query of `dim` elements, multiplied by `scale`, as row `row`.
KVMESH_AVX512_INLINE void StoreInt8Query(const float* query, int dim, float scale, int row, Scratch& s) {
  __m512 highest = _mm512_setzero_ps();
  bool finite = true;
  for (int k = 0; k < dim; k += 16) {
    const __m512 x = _mm512_abs_ps(_mm512_mul_ps(_mm512_loadu_ps(query + k), _mm512_set1_ps(scale)));
    finite = finite && _mm512_cmp_ps_mask(x, _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ) == 0xffff;
    highest = _mm512_max_ps(highest, x);
  }
  const float most = _mm512_reduce_max_ps(highest);
  // A query that is not finite scores NaN; one that is next to nothing scores 0.
  const bool counts = finite && most > 1e-30f;
  const __m512 steps = _mm512_set1_ps(counts ? scale * (kQuerySteps / most) : 0.0f);
  s.query_scale[row] = !finite ? __builtin_nanf("") : counts ? most / kQuerySteps : 0.0f;
  __m512i total = _mm512_setzero_si512();
  for (int k = 0; k < dim; k += 64) {
    __m512i high[4], low[4];
    KVMESH_UNROLL
    for (int i = 0; i < 4; ++i) {
      const __m512 x = _mm512_loadu_ps(query + k + 16 * i);
      const __m512i whole = counts ? _mm512_cvtps_epi32(_mm512_mul_ps(x, steps)) : _mm512_setzero_si512();
      high[i] = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(64)), 7);
      low[i] = _mm512_sub_epi32(whole, _mm512_slli_epi32(high[i], 7));
      total = _mm512_add_epi32(total, whole);
    }
    StoreQuery<Stored::kInt8>(PackBytes(high), k / 64, 0, s.Query(row));
    StoreQuery<Stored::kInt8>(PackBytes(low), k / 64, 1, s.Query(row));
  }
  s.query_bias[row] = 128 * _mm512_reduce_add_epi32(total);
}

}  // namespace kvmesh::avx512
KVMESH_AVX512_END

#endif  // KVMESH_KERNELS_CPU_AVX512_SCORE_INL_H_
