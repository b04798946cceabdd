// Vector exp2 and tanh, for one Highway target per inclusion.
#if defined(KVMESH_KERNELS_CPU_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVMESH_KERNELS_CPU_VECTOR_MATH_INL_H_
#undef KVMESH_KERNELS_CPU_VECTOR_MATH_INL_H_
#else
#define KVMESH_KERNELS_CPU_VECTOR_MATH_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvmesh::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 2^x for x <= 127. Relative error below 3e-7; 0 below about -126.5, and for -infinity; NaN stays NaN; exactly 1 at 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 * 2^23 rounds to an integer n and leaves n + 127 in the low bits, where a shift makes it an exponent.
  const V shifter = hn::Set(d, 12582912.0f + 127.0f);
  x = hn::Max(hn::Set(d, -127.0f), x);  // the second operand of a NaN comparison wins
  const V shifted = hn::Add(x, shifter);
  const V f = hn::Sub(x, hn::Sub(shifted, shifter));  // in [-0.5, 0.5]
  const V scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
  // Minimax of (2^f - 1) / f, relative to 2^f.
  V p = hn::Set(d, 0x1.5bba14p-10f);
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.3cea88p-7f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.c6b752p-5f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.ebf9bcp-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 0x1.62e42ap-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  return hn::Mul(p, scale);
}

// tanh(x), relative error below 5e-7. NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V magnitude = hn::Abs(x);
  // Small: x + x^3 p(x^2), minimax on [0, 0.625].
  const V square = hn::Mul(x, x);
  V p = hn::Set(d, -0.0057049873f);
  p = hn::MulAdd(p, square, hn::Set(d, 0.020639088f));
  p = hn::MulAdd(p, square, hn::Set(d, -0.053739715f));
  p = hn::MulAdd(p, square, hn::Set(d, 0.13331442f));
  p = hn::MulAdd(p, square, hn::Set(d, -0.3333328f));
  const V small = hn::MulAdd(hn::Mul(p, square), x, x);
  // Large: 1 - 2e / (1 + e) with e = exp(-2|x|).
  const V e = Exp2(d, hn::Mul(magnitude, hn::Set(d, -2.8853900817779268f)));
  const V ratio = hn::Div(hn::Add(e, e), hn::Add(one, e));
  const V large = hn::CopySign(hn::Sub(one, ratio), x);
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.625f)), small, large);
}

}  // namespace kvmesh::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVMESH_KERNELS_CPU_VECTOR_MATH_INL_H_
