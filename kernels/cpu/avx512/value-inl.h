// Sums of weighted values over the keys of a tile. bf16 and int8 values of two or four keys
// are interleaved, so that 32 bits hold the same element of all of them, as the dot products take them.
#ifndef KVMESH_KERNELS_CPU_AVX512_VALUE_INL_H_
#define KVMESH_KERNELS_CPU_AVX512_VALUE_INL_H_

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/avx512/math-inl.h"
#include "kernels/cpu/avx512/scratch.h"
#include "kernels/cpu/avx512/target.h"

KVMESH_AVX512_BEGIN
namespace kvmesh::avx512 {

// Word `word` of a row's weights, or of their low digits, in each lane.
KVMESH_AVX512_INLINE __m512i Weights(const Scratch& s, int row, int word) {
  int32_t bits;
  __builtin_memcpy(&bits, s.weights[row] + word, sizeof(bits));
  return _mm512_set1_epi32(bits);
}

// Asks for kLines cache lines from `at` on of `count` rows from `row` on.
template <int kLines>
KVMESH_AVX512_INLINE void Prefetch(const std::byte* const* rows, int row, int count, int64_t at) {
  KVMESH_UNROLL
  for (int i = 0; i < count; ++i) {
    KVMESH_UNROLL
    for (int line = 0; line < kLines; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(rows[row + i] + at + line * kVector), _MM_HINT_T0);
    }
  }
}

// acc of kR rows, kV vectors from `at` on, for the tile; next: rows that are wanted soon. fp32: each vector is
// 16 elements of a value's row.
template <int kR, int kV>
KVMESH_AVX512_INLINE void AddF32(const std::byte* const* values, const std::byte* const* next, TileRange range, int row,
                                 int at, Scratch& s) {
  __m512 sum[kR][kV];
  KVMESH_UNROLL
  for (int r = 0; r < kR; ++r) {
    KVMESH_UNROLL
    for (int v = 0; v < kV; ++v) {
      sum[r][v] = _mm512_mul_ps(_mm512_load_ps(s.Acc(row + r) + (at + v) * 16), _mm512_set1_ps(s.rescale[row + r]));
    }
  }
  for (int j = range.begin; j < range.end; ++j) {
    __m512 value[kV];
    KVMESH_UNROLL
    for (int v = 0; v < kV; ++v) value[v] = _mm512_loadu_ps(values[j] + (at + v) * kVector);
    Prefetch<kV>(next, j, 1, at * kVector);
    KVMESH_UNROLL
    for (int r = 0; r < kR; ++r) {
      const __m512 weight = _mm512_set1_ps(s.weights[row + r][j]);
      KVMESH_UNROLL
      for (int v = 0; v < kV; ++v) sum[r][v] = _mm512_fmadd_ps(weight, value[v], sum[r][v]);
    }
  }
  KVMESH_UNROLL
  for (int r = 0; r < kR; ++r) {
    KVMESH_UNROLL
    for (int v = 0; v < kV; ++v) _mm512_store_ps(s.Acc(row + r) + (at + v) * 16, sum[r][v]);
  }
}

// bf16: two vectors of sums for each vector of a value's row; kV is even, and so is `at`.
template <int kR, int kV>
KVMESH_AVX512_INLINE void AddBf16(const std::byte* const* values, const std::byte* const* next, TileRange range,
                                  int row, int at, Scratch& s) {
  __m512 sum[kR][kV];
  KVMESH_UNROLL
  for (int r = 0; r < kR; ++r) {
    KVMESH_UNROLL
    for (int v = 0; v < kV; ++v) {
      sum[r][v] = _mm512_mul_ps(_mm512_load_ps(s.Acc(row + r) + (at + v) * 16), _mm512_set1_ps(s.rescale[row + r]));
    }
  }
  for (int j = range.begin / 2 * 2; j < range.end; j += 2) {
    __m512i value[kV];
    KVMESH_UNROLL
    for (int v = 0; v < kV; v += 2) {
      const __m512i a = _mm512_loadu_si512(values[j] + (at + v) / 2 * kVector);
      const __m512i b = _mm512_loadu_si512(values[j + 1] + (at + v) / 2 * kVector);
      value[v] = _mm512_unpacklo_epi16(a, b);
      value[v + 1] = _mm512_unpackhi_epi16(a, b);
    }
    Prefetch<kV / 2>(next, j, 2, at / 2 * kVector);
    KVMESH_UNROLL
    for (int r = 0; r < kR; ++r) {
      const __m512i high = Weights(s, row + r, j / 2), low = Weights(s, row + r, 32 + j / 2);
      KVMESH_UNROLL
      for (int v = 0; v < kV; ++v) {
        sum[r][v] = AddDotBf16(sum[r][v], value[v], high);
        sum[r][v] = AddDotBf16(sum[r][v], value[v], low);
      }
    }
  }
  KVMESH_UNROLL
  for (int r = 0; r < kR; ++r) {
    KVMESH_UNROLL
    for (int v = 0; v < kV; ++v) _mm512_store_ps(s.Acc(row + r) + (at + v) * 16, sum[r][v]);
  }
}

// int8: four vectors of sums for each vector of a value's row; kV is 2, of the upper two if so said, or 4 or 8.
template <int kR, int kV, bool kUpper>
KVMESH_AVX512_INLINE void AddInt8(const std::byte* const* values, const std::byte* const* next, TileRange range,
                                  int row, int at, Scratch& s) {
  __m512i high[kR][kV], low[kR][kV];
  KVMESH_UNROLL
  for (int r = 0; r < kR; ++r) {
    KVMESH_UNROLL
    for (int v = 0; v < kV; ++v) high[r][v] = low[r][v] = _mm512_setzero_si512();
  }
  for (int j = range.begin / 4 * 4; j < range.end; j += 4) {
    __m512i value[kV];
    KVMESH_UNROLL
    for (int v = 0; v < kV; v += 2) {
      const int64_t offset = (at + v) / 4 * kVector;
      const __m512i a = _mm512_loadu_si512(values[j] + offset), b = _mm512_loadu_si512(values[j + 1] + offset);
      const __m512i c = _mm512_loadu_si512(values[j + 2] + offset), d = _mm512_loadu_si512(values[j + 3] + offset);
      const bool upper = kUpper || v % 4 != 0;
      const __m512i ab = upper ? _mm512_unpackhi_epi8(a, b) : _mm512_unpacklo_epi8(a, b);
      const __m512i cd = upper ? _mm512_unpackhi_epi8(c, d) : _mm512_unpacklo_epi8(c, d);
      value[v] = _mm512_unpacklo_epi16(ab, cd);
      value[v + 1] = _mm512_unpackhi_epi16(ab, cd);
    }
    if constexpr (!kUpper) Prefetch<(kV + 3) / 4>(next, j, 4, at / 4 * kVector);
    KVMESH_UNROLL
    for (int r = 0; r < kR; ++r) {
      const __m512i high_weights = Weights(s, row + r, j / 4), low_weights = Weights(s, row + r, 16 + j / 4);
      KVMESH_UNROLL
      for (int v = 0; v < kV; ++v) {
        high[r][v] = AddDotBytes(high[r][v], high_weights, value[v]);
        low[r][v] = AddDotBytes(low[r][v], low_weights, value[v]);
      }
    }
  }
  KVMESH_UNROLL
  for (int r = 0; r < kR; ++r) {
    const __m512 rescale = _mm512_set1_ps(s.rescale[row + r]), scale = _mm512_set1_ps(s.weight_scale[row + r]);
    KVMESH_UNROLL
    for (int v = 0; v < kV; ++v) {
      float* acc = s.Acc(row + r) + (at + v) * 16;
      const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[r][v], 8), low[r][v]));
      _mm512_store_ps(acc, _mm512_fmadd_ps(sum, scale, _mm512_mul_ps(_mm512_load_ps(acc), rescale)));
    }
  }
}

template <Stored kStored, int kR, int kV>
KVMESH_AVX512_INLINE void AddVectors(const std::byte* const* values, const std::byte* const* next, TileRange range,
                                     int row, int at, Scratch& s) {
  if constexpr (kStored == Stored::kF32) {
    AddF32<kR, kV>(values, next, range, row, at, s);
  } else if constexpr (kStored == Stored::kBf16) {
    AddBf16<kR, kV>(values, next, range, row, at, s);
  } else {
    if (kV == 2 && at % 4 != 0) {
      AddInt8<kR, kV, true>(values, next, range, row, at, s);
    } else {
      AddInt8<kR, kV, false>(values, next, range, row, at, s);
    }
  }
}

// All `vectors` of the sums of kR rows, which see the same keys.
template <Stored kStored, int kR>
KVMESH_AVX512_INLINE void AddValues(const std::byte* const* values, const std::byte* const* next, TileRange range,
                                    int row, int vectors, Scratch& s) {
  // Vectors at a time, so that the sums stay in registers: 16 of them, with two digits each 8.
  constexpr int kSums = kStored == Stored::kInt8 ? 8 : 16;
  constexpr int kV = std::min(kSums / kR, 8);
  int at = 0;
  for (; at + kV <= vectors; at += kV) AddVectors<kStored, kR, kV>(values, next, range, row, at, s);
  if constexpr (kV > 2) {
    for (; at + 2 <= vectors; at += 2) AddVectors<kStored, kR, 2>(values, next, range, row, at, s);
  }
  if constexpr (kStored == Stored::kF32) {
    if (at < vectors) AddVectors<kStored, kR, 1>(values, next, range, row, at, s);
  }
}

}  // namespace kvmesh::avx512
KVMESH_AVX512_END

#endif  // KVMESH_KERNELS_CPU_AVX512_VALUE_INL_H_
