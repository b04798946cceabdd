// Scores of query rows against the keys of a tile. Keys are transposed 64 bytes of each at a time, so that the lanes of
// a vector are keys, and multiplied by the query's elements one after the other.
#ifndef KVMESH_KERNELS_CPU_AVX512_SCORE_INL_H_
#define KVMESH_KERNELS_CPU_AVX512_SCORE_INL_H_

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/avx512/math-inl.h"
#include "kernels/cpu/avx512/scratch.h"
#include "kernels/cpu/avx512/target.h"

KVMESH_AVX512_BEGIN
namespace kvmesh::avx512 {

// to[k * kTile + i] = word k, of 32 bits, of the 64 bytes at `at` of rows[i], for 16 rows; each xor `flip`.
KVMESH_AVX512_INLINE void Transpose(const std::byte* const* rows, int64_t at, __m512i flip, int32_t* to) {
  __m512i word[16];
  KVMESH_UNROLL
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_loadu_si512(rows[i] + at), b = _mm512_loadu_si512(rows[i + 1] + at);
    const __m512i c = _mm512_loadu_si512(rows[i + 2] + at), d = _mm512_loadu_si512(rows[i + 3] + at);
    const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
    const __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
    // word[i + n]: in each 128-bit lane L, words 4L + n of the four rows.
    word[i] = _mm512_unpacklo_epi64(ab_low, cd_low);
    word[i + 1] = _mm512_unpackhi_epi64(ab_low, cd_low);
    word[i + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    word[i + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
  }
  KVMESH_UNROLL
  for (int n = 0; n < 4; ++n) {
    const __m512i low_a = _mm512_shuffle_i32x4(word[n], word[4 + n], 0x44);
    const __m512i high_a = _mm512_shuffle_i32x4(word[n], word[4 + n], 0xee);
    const __m512i low_b = _mm512_shuffle_i32x4(word[8 + n], word[12 + n], 0x44);
    const __m512i high_b = _mm512_shuffle_i32x4(word[8 + n], word[12 + n], 0xee);
    const auto store = [&](int k, __m512i x) __attribute__((always_inline)) {
      _mm512_store_si512(to + k * kTile, _mm512_xor_si512(x, flip));
    };
    store(n, _mm512_shuffle_i32x4(low_a, low_b, 0x88));
    store(4 + n, _mm512_shuffle_i32x4(low_a, low_b, 0xdd));
    store(8 + n, _mm512_shuffle_i32x4(high_a, high_b, 0x88));
    store(12 + n, _mm512_shuffle_i32x4(high_a, high_b, 0xdd));
  }
}

// Word `word` of a query's digit in each lane.
KVMESH_AVX512_INLINE __m512i QueryWord(const std::byte* query, int word) {
  int32_t bits;
  __builtin_memcpy(&bits, query + word * 4, sizeof(bits));
  return _mm512_set1_epi32(bits);
}

// scores[r] += the products of one column, 64 bytes of the query and of each transposed key, for kW vectors of keys
// from key `at` on and kR rows from `row` on; `fresh` scores start from 0. fp32 and bf16.
template <Stored kStored, int kR, int kW>
KVMESH_AVX512_INLINE void ScoreFloats(int row, int column, int columns, int at, bool fresh, Scratch& s) {
  [[maybe_unused]] const int64_t low = int64_t{columns} * kVector;
  const int64_t stride = s.query_stride;
  const std::byte* query = s.Query(row) + int64_t{column} * kVector;
  __m512 sum[kR][kW];
  KVMESH_UNROLL
  for (int r = 0; r < kR; ++r) {
    KVMESH_UNROLL
    for (int w = 0; w < kW; ++w) {
      sum[r][w] = fresh ? _mm512_setzero_ps() : _mm512_load_ps(s.scores[row + r] + at + 16 * w);
    }
  }
  for (int k = 0; k < 16; ++k) {
    __m512i key[kW];
    KVMESH_UNROLL
    for (int w = 0; w < kW; ++w) key[w] = _mm512_load_si512(s.keys + k * kTile + at + 16 * w);
    KVMESH_UNROLL
    for (int r = 0; r < kR; ++r) {
      const __m512i q = QueryWord(query + r * stride, k);
      KVMESH_UNROLL
      for (int w = 0; w < kW; ++w) {
        if constexpr (kStored == Stored::kF32) {
          sum[r][w] = _mm512_fmadd_ps(_mm512_castsi512_ps(key[w]), _mm512_castsi512_ps(q), sum[r][w]);
        } else {
          sum[r][w] = AddDotBf16(sum[r][w], key[w], q);
        }
      }
      if constexpr (kStored == Stored::kBf16) {
        const __m512i q_low = QueryWord(query + r * stride + low, k);
        KVMESH_UNROLL
        for (int w = 0; w < kW; ++w) sum[r][w] = AddDotBf16(sum[r][w], key[w], q_low);
      }
    }
  }
  KVMESH_UNROLL
  for (int r = 0; r < kR; ++r) {
    KVMESH_UNROLL
    for (int w = 0; w < kW; ++w) _mm512_store_ps(s.scores[row + r] + at + 16 * w, sum[r][w]);
  }
}

// The same of int8, whose scores are whole numbers until WeighRow.
template <int kR, int kW>
KVMESH_AVX512_INLINE void ScoreBytes(int row, int column, int columns, int at, bool fresh, Scratch& s) {
  const int64_t stride = s.query_stride, low = int64_t{columns} * kVector;
  const std::byte* query = s.Query(row) + int64_t{column} * kVector;
  __m512i high_sum[kR][kW], low_sum[kR][kW];
  KVMESH_UNROLL
  for (int r = 0; r < kR; ++r) {
    KVMESH_UNROLL
    for (int w = 0; w < kW; ++w) high_sum[r][w] = low_sum[r][w] = _mm512_setzero_si512();
  }
  for (int k = 0; k < 16; ++k) {
    __m512i key[kW];
    KVMESH_UNROLL
    for (int w = 0; w < kW; ++w) key[w] = _mm512_load_si512(s.keys + k * kTile + at + 16 * w);
    KVMESH_UNROLL
    for (int r = 0; r < kR; ++r) {
      const __m512i q_high = QueryWord(query + r * stride, k), q_low = QueryWord(query + r * stride + low, k);
      KVMESH_UNROLL
      for (int w = 0; w < kW; ++w) {
        high_sum[r][w] = AddDotBytes(high_sum[r][w], key[w], q_high);
        low_sum[r][w] = AddDotBytes(low_sum[r][w], key[w], q_low);
      }
    }
  }
  KVMESH_UNROLL
  for (int r = 0; r < kR; ++r) {
    KVMESH_UNROLL
    for (int w = 0; w < kW; ++w) {
      float* to = s.scores[row + r] + at + 16 * w;
      const __m512i before = fresh ? _mm512_setzero_si512() : _mm512_load_si512(to);
      const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high_sum[r][w], 7), low_sum[r][w]);
      _mm512_store_si512(to, _mm512_add_epi32(before, sum));
    }
  }
}

template <Stored kStored, int kR, int kW>
KVMESH_AVX512_INLINE void ScoreColumn(int row, int column, int columns, int at, Scratch& s) {
  if constexpr (kStored == Stored::kInt8) {
    ScoreBytes<kR, kW>(row, column, columns, at, column == 0, s);
  } else {
    ScoreFloats<kStored, kR, kW>(row, column, columns, at, column == 0, s);
  }
}

// kR rows against the keys of one column that meet `seen`.
template <Stored kStored, int kR, int kKeys>
KVMESH_AVX512_INLINE void ScoreRows(int row, int column, int columns, TileRange seen, Scratch& s) {
  int at = seen.begin / 16 * 16;
  for (; at + kKeys < seen.end + 16; at += kKeys) {
    ScoreColumn<kStored, kR, kKeys / 16>(row, column, columns, at, s);
  }
  for (; at < seen.end; at += 16) ScoreColumn<kStored, kR, 1>(row, column, columns, at, s);
}

// Rows [first, last) of one kv head against the keys of a tile, kKeys of which are transposed at a time. next: keys
// that are wanted soon.
template <Stored kStored, int kKeys>
void ScoreTile(const std::byte* const* keys, const std::byte* const* next, int first, int last, int columns,
               TileRange seen, Scratch& s) {
  // Two sums of each int8 score: half the rows fill the registers.
  constexpr int kR = kStored == Stored::kInt8 ? 2 : 4;
  // The dot product takes unsigned keys: what the offset adds is in query_bias.
  const __m512i flip = _mm512_set1_epi8(kStored == Stored::kInt8 ? -128 : 0);
  int64_t wanted = 0;
  for (int begin = 0; begin < kTile; begin += kKeys) {
    const TileRange part = {std::max(begin, seen.begin), std::min(begin + kKeys, seen.end)};
    if (part.begin >= part.end) continue;
    for (int column = 0; column < columns; ++column) {
      for (int j = part.begin / 16 * 16; j < part.end; j += 16) {
        // In the order of memory, which it likes best.
        for (int i = 0; i < 16; ++i) {
          _mm_prefetch(reinterpret_cast<const char*>(*next + wanted), _MM_HINT_T0);
          wanted += kVector;
          const bool row_ends = wanted == int64_t{columns} * kVector;
          wanted = row_ends ? 0 : wanted;
          next += row_ends;
        }
        Transpose(keys + j, int64_t{column} * kVector, flip, s.keys + j);
      }
      int r = first;
      for (; r + kR <= last; r += kR) ScoreRows<kStored, kR, kKeys>(r, column, columns, part, s);
      if constexpr (kR > 2) {
        if (r + 2 <= last) {
          ScoreRows<kStored, 2, kKeys>(r, column, columns, part, s);
          r += 2;
        }
      }
      if (r < last) ScoreRows<kStored, 1, kKeys>(r, column, columns, part, s);
    }
  }
}

// Largest multiple of the unit that an int8 query is counted in: two digits in base 128.
inline constexpr float kQuerySteps = 127 * 128;

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
    _mm512_store_si512(s.Query(row) + k, PackBytes(high));
    _mm512_store_si512(s.Query(row) + dim + k, PackBytes(low));
  }
  s.query_bias[row] = 128 * _mm512_reduce_add_epi32(total);
}

}  // namespace kvmesh::avx512
KVMESH_AVX512_END

#endif  // KVMESH_KERNELS_CPU_AVX512_SCORE_INL_H_
