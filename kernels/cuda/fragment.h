// Where the elements of a tile in shared memory go in the fragments of mma.m16n8k16, by way of ldmatrix.x4: the rows of
// 16 bytes that the lanes point at. Lanes 8 i .. 8 i + 7 point at the rows of matrix i, which becomes register i.
#ifndef KVMESH_KERNELS_CUDA_FRAGMENT_H_
#define KVMESH_KERNELS_CUDA_FRAGMENT_H_

#include <type_traits>

#include "kernels/cuda/machine.h"
#include "kernels/element.h"

namespace kvmesh::cuda {

// A row of eight elements in a tile, at `row` and from `column` on.
struct FragmentRow {
  int row;
  int column;
};

// a, rows 0 .. 15 by k 0 .. 15: the registers of a fragment in order.
KVMESH_HOST_DEVICE constexpr FragmentRow QueryFragmentRow(int lane) { return {lane % 16, lane / 16 * 8}; }

// b from keys stored [key][element]: registers 0 and 1 are b of keys 0 .. 7, registers 2 and 3 that of keys 8 .. 15.
KVMESH_HOST_DEVICE constexpr FragmentRow KeyFragmentRow(int lane) {
  return {lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8};
}

// b from values stored [key][element], transposed on the way: registers 0 and 1 are b of elements 0 .. 7, registers 2
// and 3 that of elements 8 .. 15, each over keys 0 .. 15.
KVMESH_HOST_DEVICE constexpr FragmentRow ValueFragmentRow(int lane) {
  return {lane / 8 % 2 * 8 + lane % 8, lane / 16 * 8};
}

// c: row and column of register i.
KVMESH_HOST_DEVICE constexpr FragmentRow SumElement(int lane, int i) {
  return {lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2};
}

// The bits of x as an element of the tensor cores, nearest, ties to even; and back.
template <class Element>
KVMESH_HOST_DEVICE uint16_t ToElement(float x);
template <>
KVMESH_HOST_DEVICE inline uint16_t ToElement<Bf16>(float x) {
  return Bf16FromF32(x);
}
template <>
KVMESH_HOST_DEVICE inline uint16_t ToElement<F16>(float x) {
  return F16FromF32(x);
}
template <class Element>
KVMESH_HOST_DEVICE float FromElement(uint16_t x);
template <>
KVMESH_HOST_DEVICE inline float FromElement<Bf16>(uint16_t x) {
  return F32FromBf16(x);
}
template <>
KVMESH_HOST_DEVICE inline float FromElement<F16>(uint16_t x) {
  return F32FromF16(x);
}

// Two elements as a register has them. On the device by the conversion instruction: equal but for the bits of a NaN.
template <class Element>
KVMESH_HOST_DEVICE uint32_t PackElements(float low, float high) {
#ifdef __CUDA_ARCH__
  uint32_t out;
  if constexpr (std::is_same_v<Element, Bf16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  }
  return out;
#else
  return ToElement<Element>(low) | uint32_t{ToElement<Element>(high)} << 16;
#endif
}

// Four stored bytes of fp8 or int8, exactly, as fp32.
template <KvFormat kFormat>
KVMESH_HOST_DEVICE void FourElements(uint32_t raw, float (&x)[4]) {
  if constexpr (kFormat == KvFormat::kInt8) {
    // A byte of 128 more in the low bits of 2^23.
    const uint32_t up = raw ^ 0x80808080u;
    for (int k = 0; k < 4; ++k) x[k] = BitCast<float>(0x4b000000u | (up >> (8 * k) & 0xffu)) - (0x1p23f + 128);
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    for (int k = 0; k < 2; ++k) {
      uint32_t halves;
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(raw >> (16 * k))));
      asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
          : "=f"(x[2 * k]), "=f"(x[2 * k + 1])
          : "r"(halves));
    }
#else
    for (int k = 0; k < 4; ++k) x[k] = F32FromFp8(static_cast<uint8_t>(raw >> (8 * k)));
#endif
  }
}

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_FRAGMENT_H_
