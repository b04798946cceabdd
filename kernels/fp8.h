// Conversions between fp32 and fp8 e4m3: sign, 4 exponent bits (bias 7), 3 mantissa bits. No infinity; 0x7f and 0xff
// are NaN; the largest number is 448, the smallest 2^-9. Source of the format: Micikevicius et al., "FP8 Formats for
// Deep Learning", 2022. Branch-free, so that a loop over them vectorizes.
#ifndef KVMESH_KERNELS_FP8_H_
#define KVMESH_KERNELS_FP8_H_

#include <cstdint>

#include "kernels/host_device.h"

namespace kvmesh {

inline constexpr float kFp8Max = 448.0f;

// fp8 bits of x: nearest, ties to even, subnormals kept; beyond 448, infinity included, gives 448; a NaN stays a NaN.
KVMESH_HOST_DEVICE constexpr uint8_t Fp8FromF32(float x) {
  const uint32_t bits = BitCast<uint32_t>(x);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Normal results: rebias the exponent (127 -> 7) and round the 20 dropped bits.
  const uint32_t normal = (magnitude - (120u << 23) + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  // Subnormal results: adding 2^14 leaves multiples of 2^-9 in the low bits, rounded by the addition.
  const uint32_t subnormal = BitCast<uint32_t>(BitCast<float>(magnitude) + 0x1p14f) - 0x46800000u;
  uint32_t out = magnitude < (121u << 23) ? subnormal : normal;
  out = magnitude > 0x43e00000u ? 0x7eu : out;  // 448
  out = magnitude > 0x7f800000u ? 0x7fu : out;
  return static_cast<uint8_t>(sign | out);
}

// Exact.
KVMESH_HOST_DEVICE constexpr float F32FromFp8(uint8_t x) {
  const uint32_t sign = uint32_t{x & 0x80u} << 24;
  const uint32_t magnitude = x & 0x7fu;
  const uint32_t normal = (magnitude << 20) + (120u << 23);
  // A subnormal m stands for m * 2^-9: put m below the mantissa of 2^14 and take 2^14 away.
  const uint32_t subnormal = BitCast<uint32_t>(BitCast<float>(magnitude | 0x46800000u) - 0x1p14f);
  uint32_t out = magnitude < 8 ? subnormal : normal;
  out = magnitude == 0x7f ? 0x7fc00000u : out;
  return BitCast<float>(sign | out);
}

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_FP8_H_
