// Conversions between fp32 and the elements of each stored format. A format with descales stores numbers that are still
// to be multiplied by one: see kernels/quantize_kv.h. Conversions of one element are branch-free, so that a loop over
// them vectorizes.
#ifndef KVMESH_KERNELS_ELEMENT_H_
#define KVMESH_KERNELS_ELEMENT_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/fp8.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"

namespace kvmesh {

// bf16 bits of x: nearest, ties to even; a NaN stays a NaN (quiet, sign kept); overflow gives infinity.
KVMESH_HOST_DEVICE constexpr uint16_t Bf16FromF32(float x) {
  const uint32_t bits = BitCast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// Exact.
KVMESH_HOST_DEVICE constexpr float F32FromBf16(uint16_t x) { return BitCast<float>(uint32_t{x} << 16); }

// IEEE binary16 bits of x: nearest, ties to even, subnormals kept; a NaN stays a NaN; overflow gives infinity.
KVMESH_HOST_DEVICE constexpr uint16_t F16FromF32(float x) {
  const uint32_t bits = BitCast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Normal results: rebias the exponent (127 -> 15) and round the 13 dropped bits; a carry reaches infinity by itself.
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Subnormal results: adding 0.5 leaves multiples of 2^-24 in the low bits, rounded by the addition.
  const uint32_t subnormal = BitCast<uint32_t>(BitCast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  uint32_t out = magnitude < (113u << 23) ? subnormal : normal;
  out = magnitude >= 0x477ff000u ? 0x7c00u : out;  // 65520 and above
  out = magnitude > 0x7f800000u ? nan : out;
  return static_cast<uint16_t>(sign | out);
}

// Exact.
KVMESH_HOST_DEVICE constexpr float F32FromF16(uint16_t x) {
  const uint32_t sign = uint32_t{x & 0x8000u} << 16;
  const uint32_t magnitude = x & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  // A subnormal m stands for m * 2^-24: put m below the mantissa of 0.5 and take 0.5 away.
  const uint32_t subnormal = BitCast<uint32_t>(BitCast<float>(magnitude | 0x3f000000u) - 0.5f);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  uint32_t out = magnitude < 0x400u ? subnormal : normal;
  out = magnitude >= 0x7c00u ? special : out;
  return BitCast<float>(sign | out);
}

// x rounded to an integer in [-limit, limit]: nearest, ties to even. REQUIRES: x is not a NaN, 0 <= limit < 2^22.
KVMESH_HOST_DEVICE constexpr int32_t IntFromF32(float x, int32_t limit) {
  const float most = static_cast<float>(limit);
  const float above = x < -most ? -most : x;
  const float clamped = above > most ? most : above;
  // Adding 1.5 * 2^23 leaves the integer in the low bits, rounded by the addition.
  return static_cast<int32_t>(BitCast<uint32_t>(clamped + 0x1.8p23f) - 0x4b400000u);
}

inline constexpr int32_t kInt8Max = 127;
inline constexpr int32_t kInt4Max = 7;

// Element `index` of a run of elements of `format` as fp32, before any descale. REQUIRES: format specified.
KVMESH_HOST_DEVICE inline float LoadElement(const std::byte* run, int64_t index, KvFormat format) {
  switch (format) {
    case KvFormat::kF16:
    case KvFormat::kBf16: {
      uint16_t bits;
      std::memcpy(&bits, run + index * 2, 2);
      return format == KvFormat::kBf16 ? F32FromBf16(bits) : F32FromF16(bits);
    }
    case KvFormat::kFp8E4m3:
      return F32FromFp8(static_cast<uint8_t>(run[index]));
    case KvFormat::kInt8:
      return static_cast<int8_t>(run[index]);
    case KvFormat::kInt4: {
      // The half byte goes to the high half, whose sign bit the shift back then spreads.
      const int high = static_cast<int>(run[index / 2]) << (index % 2 == 0 ? 4 : 0) & 0xf0;
      return static_cast<float>(static_cast<int8_t>(high) >> 4);
    }
    case KvFormat::kF32:
    case KvFormat::kUnspecified:
      break;
  }
  float out;
  std::memcpy(&out, run + index * 4, 4);
  return out;
}

// Writes x, rounded and clamped to `format`, as element `index` of a run; other elements stay. REQUIRES: format
// specified; x is not a NaN for kInt8 and kInt4.
KVMESH_HOST_DEVICE inline void StoreElement(float x, std::byte* run, int64_t index, KvFormat format) {
  switch (format) {
    case KvFormat::kF16:
    case KvFormat::kBf16: {
      const uint16_t bits = format == KvFormat::kBf16 ? Bf16FromF32(x) : F16FromF32(x);
      std::memcpy(run + index * 2, &bits, 2);
      return;
    }
    case KvFormat::kFp8E4m3:
      run[index] = std::byte{Fp8FromF32(x)};
      return;
    case KvFormat::kInt8:
      run[index] = static_cast<std::byte>(IntFromF32(x, kInt8Max));
      return;
    case KvFormat::kInt4: {
      const std::byte half = static_cast<std::byte>(IntFromF32(x, kInt4Max)) & std::byte{0x0f};
      std::byte& both = run[index / 2];
      both = index % 2 == 0 ? (both & std::byte{0xf0}) | half : (both & std::byte{0x0f}) | half << 4;
      return;
    }
    case KvFormat::kF32:
    case KvFormat::kUnspecified:
      break;
  }
  std::memcpy(run + index * 4, &x, 4);
}

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_ELEMENT_H_
