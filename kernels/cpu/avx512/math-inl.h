// Vector exp2 and tanh, and digits: numbers as sums of numbers that the dot products take.
#ifndef KVMESH_KERNELS_CPU_AVX512_MATH_INL_H_
#define KVMESH_KERNELS_CPU_AVX512_MATH_INL_H_

#include <immintrin.h>

#include "kernels/cpu/avx512/target.h"

KVMESH_AVX512_BEGIN
namespace kvmesh::avx512 {

// 2^x for x <= 127. Relative error below 3e-7; 0 below about -126.5, and for -infinity; NaN stays NaN; exactly 1 at 0.
KVMESH_AVX512_INLINE __m512 Exp2(__m512 x) {
  // Adding 1.5 * 2^23 rounds to an integer n and leaves n + 127 in the low bits, where a shift makes it an exponent.
  const __m512 shifter = _mm512_set1_ps(12582912.0f + 127.0f);
  x = _mm512_max_ps(_mm512_set1_ps(-127.0f), x);  // the second operand of a NaN comparison wins
  const __m512 shifted = _mm512_add_ps(x, shifter);
  const __m512 f = _mm512_sub_ps(x, _mm512_sub_ps(shifted, shifter));  // in [-0.5, 0.5]
  const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted), 23));
  // Minimax of (2^f - 1) / f, relative to 2^f.
  __m512 p = _mm512_set1_ps(0x1.5bba14p-10f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.3cea88p-7f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c6b752p-5f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebf9bcp-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e42ap-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_mul_ps(p, scale);
}

// tanh(x), relative error below 5e-7. NaN stays NaN.
KVMESH_AVX512_INLINE __m512 Tanh(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 magnitude = _mm512_abs_ps(x);
  // Small: x + x^3 p(x^2), minimax on [0, 0.625].
  const __m512 square = _mm512_mul_ps(x, x);
  __m512 p = _mm512_set1_ps(-0.0057049873f);
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(0.020639088f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(-0.053739715f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(0.13331442f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(-0.3333328f));
  const __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(p, square), x, x);
  // Large: 1 - 2e / (1 + e) with e = exp(-2|x|).
  const __m512 e = Exp2(_mm512_mul_ps(magnitude, _mm512_set1_ps(-2.8853900817779268f)));
  const __m512 large = _mm512_sub_ps(one, _mm512_div_ps(_mm512_add_ps(e, e), _mm512_add_ps(one, e)));
  const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0f));
  const __mmask16 is_small = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(0.625f), _CMP_LT_OQ);
  return _mm512_mask_blend_ps(is_small, _mm512_or_ps(large, sign), small);
}

// sum + a * b, over two bf16 numbers, or an unsigned and a signed byte each of four, in every lane. Assembly, since
// GCC 12 makes two copies of the sum around each of these intrinsics.
KVMESH_AVX512_INLINE __m512 AddDotBf16(__m512 sum, __m512i a, __m512i b) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "vm"(b));
  return sum;
}
KVMESH_AVX512_INLINE __m512i AddDotBytes(__m512i sum, __m512i a, __m512i b) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "vm"(b));
  return sum;
}

// 64 elements, 16 in each of four vectors of 32-bit integers, as bytes in order.
KVMESH_AVX512_INLINE __m512i PackBytes(const __m512i (&words)[4]) {
  __m512i out = _mm512_castsi128_si512(_mm512_cvtepi32_epi8(words[0]));
  out = _mm512_inserti32x4(out, _mm512_cvtepi32_epi8(words[1]), 1);
  out = _mm512_inserti32x4(out, _mm512_cvtepi32_epi8(words[2]), 2);
  return _mm512_inserti32x4(out, _mm512_cvtepi32_epi8(words[3]), 3);
}

// 32 numbers as two bf16 numbers each, whose sum is within 2^-16 of them.
struct Bf16Digits {
  __m512i high;
  __m512i low;
};

KVMESH_AVX512_INLINE Bf16Digits SplitBf16(__m512 a, __m512 b) {
  const __m512i high = (__m512i)_mm512_cvtne2ps_pbh(b, a);
  const __m512i high_a = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(high)), 16);
  const __m512i high_b = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(high, 1)), 16);
  const __m512 low_a = _mm512_sub_ps(a, _mm512_castsi512_ps(high_a));
  const __m512 low_b = _mm512_sub_ps(b, _mm512_castsi512_ps(high_b));
  return {high, (__m512i)_mm512_cvtne2ps_pbh(low_b, low_a)};
}

}  // namespace kvmesh::avx512
KVMESH_AVX512_END

#endif  // KVMESH_KERNELS_CPU_AVX512_MATH_INL_H_
