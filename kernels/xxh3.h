// XXH3, 64-bit, seed 0, default secret: a portable implementation of the published specification
// (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md). Usable in constant expressions; any byte order.
#ifndef KVMESH_KERNELS_XXH3_H_
#define KVMESH_KERNELS_XXH3_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/host_device.h"

namespace kvmesh {
namespace xxh3_internal {

inline constexpr size_t kSecretBytes = 192;
inline constexpr size_t kStripeBytes = 64;
// Stripes of one block: the secret moves on by 8 bytes a stripe.
inline constexpr size_t kBlockStripes = (kSecretBytes - kStripeBytes) / 8;

// A table of constants. Device code cannot name a host's array but can copy a table of known values.
template <size_t kCount>
struct Constants {
  uint64_t word[kCount];
};

inline constexpr Constants<3> kPrime32 = {{0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D}};
inline constexpr Constants<5> kPrime64 = {
    {0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5}};
KVMESH_HOST_DEVICE constexpr uint64_t Prime32(size_t i) {
  constexpr Constants<3> table = kPrime32;
  return table.word[i];
}
KVMESH_HOST_DEVICE constexpr uint64_t Prime64(size_t i) {
  constexpr Constants<5> table = kPrime64;
  return table.word[i];
}

inline constexpr uint64_t kPrimeMx1 = 0x165667919E3779F9;
inline constexpr uint64_t kPrimeMx2 = 0x9FB21C651E98DF25;

// Default secret, as little-endian words.
inline constexpr Constants<kSecretBytes / 8> kSecret = {{
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb,
    0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c, 0xa32e531b8b65d088,
    0x4ef90da297486471, 0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
    0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af,
}};

KVMESH_HOST_DEVICE constexpr uint64_t SecretWord(size_t i) {
#ifdef __CUDA_ARCH__
  constexpr Constants<kSecretBytes / 8> table = kSecret;
  return table.word[i];
#else
  return kSecret.word[i];
#endif
}

using Bytes = const std::byte*;

KVMESH_HOST_DEVICE constexpr uint64_t Read(Bytes p, int bytes) {
  uint64_t out = 0;
  for (int i = 0; i < bytes; ++i) out |= uint64_t{static_cast<uint8_t>(p[i])} << (8 * i);
  return out;
}
KVMESH_HOST_DEVICE constexpr uint64_t Read32(Bytes p) { return Read(p, 4); }
KVMESH_HOST_DEVICE constexpr uint64_t Read64(Bytes p) { return Read(p, 8); }

// Eight bytes of the secret from byte `at`.
KVMESH_HOST_DEVICE constexpr uint64_t Secret(size_t at) {
  const size_t shift = at % 8 * 8;
  const uint64_t low = SecretWord(at / 8);
  return shift == 0 ? low : low >> shift | SecretWord(at / 8 + 1) << (64 - shift);
}

KVMESH_HOST_DEVICE constexpr uint64_t ByteSwap(uint64_t x) {
  uint64_t out = 0;
  for (int i = 0; i < 8; ++i) out |= (x >> (8 * i) & 0xff) << (56 - 8 * i);
  return out;
}

// Low half xor high half of the 128-bit product.
KVMESH_HOST_DEVICE constexpr uint64_t MultiplyFold(uint64_t a, uint64_t b) {
#ifdef __SIZEOF_INT128__
  __extension__ using Wide = unsigned __int128;
  const Wide product = Wide{a} * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
#else
  const uint64_t low_low = (a & 0xffffffff) * (b & 0xffffffff);
  const uint64_t high_low = (a >> 32) * (b & 0xffffffff) + (low_low >> 32);
  const uint64_t low_high = (a & 0xffffffff) * (b >> 32) + (high_low & 0xffffffff);
  const uint64_t high = (a >> 32) * (b >> 32) + (high_low >> 32) + (low_high >> 32);
  return (low_high << 32 | (low_low & 0xffffffff)) ^ high;
#endif
}

KVMESH_HOST_DEVICE constexpr uint64_t Avalanche(uint64_t h) {
  h = (h ^ h >> 37) * kPrimeMx1;
  return h ^ h >> 32;
}

KVMESH_HOST_DEVICE constexpr uint64_t Avalanche64(uint64_t h) {
  h = (h ^ h >> 33) * Prime64(1);
  h = (h ^ h >> 29) * Prime64(2);
  return h ^ h >> 32;
}

// 16 bytes of input against the secret at `at`.
KVMESH_HOST_DEVICE constexpr uint64_t Mix16(Bytes p, size_t at) {
  return MultiplyFold(Read64(p) ^ Secret(at), Read64(p + 8) ^ Secret(at + 8));
}

KVMESH_HOST_DEVICE constexpr uint64_t HashTo16(Bytes p, size_t n) {
  if (n > 8) {
    const uint64_t low = Read64(p) ^ Secret(24) ^ Secret(32);
    const uint64_t high = Read64(p + n - 8) ^ Secret(40) ^ Secret(48);
    return Avalanche(n + ByteSwap(low) + high + MultiplyFold(low, high));
  }
  if (n >= 4) {
    const uint64_t value = Read32(p + n - 4) + (Read32(p) << 32);
    uint64_t h = value ^ Secret(8) ^ Secret(16);
    h ^= std::rotl(h, 49) ^ std::rotl(h, 24);
    h *= kPrimeMx2;
    h ^= (h >> 35) + n;
    h *= kPrimeMx2;
    return h ^ h >> 28;
  }
  if (n > 0) {
    const uint64_t value = Read(p, 1) << 16 | Read(p + n / 2, 1) << 24 | Read(p + n - 1, 1) | n << 8;
    return Avalanche64(value ^ ((Secret(0) & 0xffffffff) ^ (Secret(4) & 0xffffffff)));
  }
  return Avalanche64(Secret(56) ^ Secret(64));
}

KVMESH_HOST_DEVICE constexpr uint64_t HashTo128(Bytes p, size_t n) {
  uint64_t h = n * Prime64(0);
  for (size_t i = (n - 1) / 32 + 1; i-- > 0;) {
    h += Mix16(p + 16 * i, 32 * i);
    h += Mix16(p + n - 16 * (i + 1), 32 * i + 16);
  }
  return Avalanche(h);
}

KVMESH_HOST_DEVICE constexpr uint64_t HashTo240(Bytes p, size_t n) {
  uint64_t h = n * Prime64(0);
  for (size_t i = 0; i < 8; ++i) h += Mix16(p + 16 * i, 16 * i);
  h = Avalanche(h);
  for (size_t i = 8; i < n / 16; ++i) h += Mix16(p + 16 * i, 16 * (i - 8) + 3);
  h += Mix16(p + n - 16, 136 - 17);
  return Avalanche(h);
}

struct Accumulators {
  uint64_t lane[8] = {Prime32(2), Prime64(0), Prime64(1), Prime64(2), Prime64(3), Prime32(1), Prime64(4), Prime32(0)};

  // One stripe against the secret from byte `at`.
  KVMESH_HOST_DEVICE constexpr void Add(Bytes p, size_t at) {
    for (size_t i = 0; i < 8; ++i) {
      const uint64_t value = Read64(p + 8 * i);
      const uint64_t keyed = value ^ Secret(at + 8 * i);
      lane[i ^ 1] += value;
      lane[i] += (keyed & 0xffffffff) * (keyed >> 32);
    }
  }
  KVMESH_HOST_DEVICE constexpr void Scramble() {
    for (size_t i = 0; i < 8; ++i) {
      lane[i] = (lane[i] ^ lane[i] >> 47 ^ Secret(kSecretBytes - kStripeBytes + 8 * i)) * Prime32(0);
    }
  }
  KVMESH_HOST_DEVICE constexpr uint64_t Merge(uint64_t h) const {
    for (size_t i = 0; i < 4; ++i) {
      h += MultiplyFold(lane[2 * i] ^ Secret(11 + 16 * i), lane[2 * i + 1] ^ Secret(19 + 16 * i));
    }
    return Avalanche(h);
  }
};

KVMESH_HOST_DEVICE constexpr uint64_t HashLong(Bytes p, size_t n) {
  Accumulators acc;
  const size_t stripes = (n - 1) / kStripeBytes;  // the last, perhaps partial, one is read from the end instead
  for (size_t i = 0; i < stripes; ++i) {
    acc.Add(p + kStripeBytes * i, i % kBlockStripes * 8);
    // The block that holds the last stripe is not scrambled.
    if (i % kBlockStripes == kBlockStripes - 1) acc.Scramble();
  }
  acc.Add(p + n - kStripeBytes, kSecretBytes - kStripeBytes - 7);
  return acc.Merge(n * Prime64(0));
}

}  // namespace xxh3_internal

// XXH3-64 of `bytes` with seed 0 and the default secret.
KVMESH_HOST_DEVICE constexpr uint64_t Xxh3(std::span<const std::byte> bytes) {
  namespace in = xxh3_internal;
  const size_t n = bytes.size();
  if (n <= 16) return in::HashTo16(bytes.data(), n);
  if (n <= 128) return in::HashTo128(bytes.data(), n);
  if (n <= 240) return in::HashTo240(bytes.data(), n);
  return in::HashLong(bytes.data(), n);
}

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_XXH3_H_
