// Conversions between fp32 and the stored 16-bit formats. Branch-free, so that a loop over them vectorizes.
#ifndef KVMESH_KERNELS_ELEMENT_H_
#define KVMESH_KERNELS_ELEMENT_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/layout.h"

namespace kvmesh {

// bf16 bits of x: nearest, ties to even; a NaN stays a NaN (quiet, sign kept); overflow gives infinity.
constexpr uint16_t Bf16FromF32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// Exact.
constexpr float F32FromBf16(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

// IEEE binary16 bits of x: nearest, ties to even, subnormals kept; a NaN stays a NaN; overflow gives infinity.
constexpr uint16_t F16FromF32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Normal results: rebias the exponent (127 -> 15) and round the 13 dropped bits; a carry reaches infinity by itself.
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal results: adding 0.5 leaves multiples of 2^-24 in the low bits, rounded by the addition.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  uint32_t out = magnitude < (113u << 23) ? subnormal : normal;
  out = magnitude >= 0x477ff000u ? 0x7c00u : out;  // 65520 and above
  out = magnitude > 0x7f800000u ? nan : out;
  return static_cast<uint16_t>(sign | out);
}

// Exact.
constexpr float F32FromF16(uint16_t x) {
  const uint32_t sign = uint32_t{x & 0x8000u} << 16;
  const uint32_t magnitude = x & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  // A subnormal m stands for m * 2^-24: put m below the mantissa of 0.5 and take 0.5 away.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude | 0x3f000000u) - 0.5f);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  uint32_t out = magnitude < 0x400u ? subnormal : normal;
  out = magnitude >= 0x7c00u ? special : out;
  return std::bit_cast<float>(sign | out);
}

// Reads element `index` of a run of `format` elements, as fp32.
inline float LoadElement(const std::byte* run, int64_t index, KvFormat format) {
  if (format == KvFormat::kF32) {
    float out;
    std::memcpy(&out, run + index * 4, 4);
    return out;
  }
  uint16_t bits;
  std::memcpy(&bits, run + index * 2, 2);
  return format == KvFormat::kBf16 ? F32FromBf16(bits) : F32FromF16(bits);
}

// Writes x, rounded to `format`, as element `index` of a run.
inline void StoreElement(float x, std::byte* run, int64_t index, KvFormat format) {
  if (format == KvFormat::kF32) {
    std::memcpy(run + index * 4, &x, 4);
    return;
  }
  const uint16_t bits = format == KvFormat::kBf16 ? Bf16FromF32(x) : F16FromF32(x);
  std::memcpy(run + index * 2, &bits, 2);
}

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_ELEMENT_H_
