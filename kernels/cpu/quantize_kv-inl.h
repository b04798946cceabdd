// Stored rows from and to fp32, for one Highway target per inclusion. Whole vectors first, then element by element with
// the conversions of kernels/element.h, which give the same bits.
#if defined(KVMESH_KERNELS_CPU_QUANTIZE_KV_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVMESH_KERNELS_CPU_QUANTIZE_KV_INL_H_
#undef KVMESH_KERNELS_CPU_QUANTIZE_KV_INL_H_
#else
#define KVMESH_KERNELS_CPU_QUANTIZE_KV_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/quantize_kv.h"

HWY_BEFORE_NAMESPACE();
namespace kvmesh::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Eight lanes for rows of any length, which are a multiple of 8 more often than of 16.
using RowF = hn::CappedTag<float, 8>;
using RowI = hn::RebindToSigned<RowF>;
using RowU = hn::RebindToUnsigned<RowF>;
using RowVecF = hn::Vec<RowF>;
inline constexpr int64_t kRowLanes = static_cast<int64_t>(hn::MaxLanes(RowF()));

// Bf16FromF32 of each element.
HWY_INLINE void EncodeBf16(const float* HWY_RESTRICT in, int64_t count, std::byte* HWY_RESTRICT out) {
  const RowF df;
  const RowU du;
  const hn::Rebind<uint16_t, RowF> d16;
  uint16_t* to = reinterpret_cast<uint16_t*>(out);
  int64_t i = 0;
  for (; i + kRowLanes <= count; i += kRowLanes) {
    const auto value = hn::LoadU(df, in + i);
    const auto bits = hn::BitCast(du, value);
    const auto high = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(high, hn::Set(du, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))));
    const auto quiet = hn::Or(high, hn::Set(du, 0x40u));
    const auto chosen = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(RowI(), chosen)), d16, to + i);
  }
  for (; i < count; ++i) StoreElement(in[i], out, i, KvFormat::kBf16);
}

// F32FromBf16 of each element.
HWY_INLINE void DecodeBf16(const std::byte* HWY_RESTRICT in, int64_t count, float* HWY_RESTRICT out) {
  const hn::Rebind<uint16_t, RowF> d16;
  const uint16_t* from = reinterpret_cast<const uint16_t*>(in);
  int64_t i = 0;
  for (; i + kRowLanes <= count; i += kRowLanes) {
    const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(RowU(), hn::LoadU(d16, from + i)));
    hn::StoreU(hn::BitCast(RowF(), bits), RowF(), out + i);
  }
  for (; i < count; ++i) out[i] = LoadElement(in, i, KvFormat::kBf16);
}

// The largest fp32 bits, without the sign bit, of `count` elements.
HWY_INLINE uint32_t Magnitude(const float* HWY_RESTRICT in, int64_t count) {
  const RowF df;
  const RowI di;
  auto most = hn::Zero(di);
  int64_t i = 0;
  for (; i + kRowLanes <= count; i += kRowLanes) {
    most = hn::Max(most, hn::BitCast(di, hn::Abs(hn::LoadU(df, in + i))));
  }
  uint32_t out = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, most)));
  for (; i < count; ++i) out = std::max(out, BitCast<uint32_t>(in[i]) & 0x7fffffffu);
  return out;
}

// IntFromF32 of each lane.
HWY_INLINE hn::Vec<RowI> Integers(RowVecF x, int32_t limit) {
  const RowF df;
  const auto most = hn::Set(df, static_cast<float>(limit));
  const auto clamped = hn::Min(hn::Max(x, hn::Neg(most)), most);
  return hn::Sub(hn::BitCast(RowI(), hn::Add(clamped, hn::Set(df, 0x1.8p23f))), hn::Set(RowI(), 0x4b400000));
}

// Fp8FromF32 of each lane; no NaN.
HWY_INLINE hn::Vec<RowI> Fp8Bits(RowVecF x) {
  const RowF df;
  const RowI di;
  const auto sign = hn::And(hn::BitCast(di, hn::ShiftRight<24>(hn::BitCast(RowU(), x))), hn::Set(di, 0x80));
  const auto clamped = hn::Min(hn::Abs(x), hn::Set(df, kFp8Max));
  const auto bits = hn::BitCast(di, clamped);
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(di, 1));
  const auto normal = hn::ShiftRight<20>(hn::Add(bits, hn::Add(odd, hn::Set(di, 0x7ffff - (120 << 23)))));
  const auto subnormal = hn::Sub(hn::BitCast(di, hn::Add(clamped, hn::Set(df, 0x1p14f))), hn::Set(di, 0x46800000));
  return hn::Or(sign, hn::IfThenElse(hn::Lt(bits, hn::Set(di, 121 << 23)), subnormal, normal));
}

// F32FromFp8 of each lane's low byte, the others 0.
template <class D>
HWY_INLINE hn::Vec<D> Fp8Values(D df, hn::Vec<hn::RebindToUnsigned<D>> x) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto sign = hn::ShiftLeft<24>(hn::And(x, hn::Set(du, 0x80u)));
  const auto magnitude = hn::BitCast(di, hn::And(x, hn::Set(du, 0x7fu)));
  const auto normal = hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(di, 120 << 23));
  const auto small = hn::BitCast(df, hn::Or(magnitude, hn::Set(di, 0x46800000)));
  const auto subnormal = hn::BitCast(di, hn::Sub(small, hn::Set(df, 0x1p14f)));
  auto out = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 8)), subnormal, normal);
  out = hn::IfThenElse(hn::Eq(magnitude, hn::Set(di, 0x7f)), hn::Set(di, 0x7fc00000), out);
  return hn::BitCast(df, hn::Or(hn::BitCast(du, out), sign));
}

// Element i of a run of int4 stands in bits [4i, 4i + 4) of the word that begins with it: where each lane's bits are.
HWY_INLINE hn::Vec<RowU> Int4Places() { return hn::ShiftLeft<2>(hn::Iota(RowU(), 0)); }

HWY_INLINE void EncodeInt4(hn::Vec<RowI> values, int64_t first, std::byte* row) {
  const RowU du;
  const auto halves = hn::And(hn::BitCast(du, values), hn::Set(du, 15u));
  const uint32_t word = hn::GetLane(hn::SumOfLanes(du, hn::Shl(halves, Int4Places())));
  std::memcpy(row + first / 2, &word, kRowLanes / 2);
}

HWY_INLINE hn::Vec<RowI> DecodeInt4(const std::byte* row, int64_t first) {
  const RowU du;
  uint32_t word = 0;
  std::memcpy(&word, row + first / 2, kRowLanes / 2);
  const auto top = hn::Shl(hn::Set(du, word), hn::Sub(hn::Set(du, 28u), Int4Places()));
  return hn::ShiftRight<28>(hn::BitCast(RowI(), top));
}

// Elements [first, last) of a row of a format with descales. Returns the descale.
template <KvFormat kFormat>
HWY_INLINE float QuantizeGroup(const float* HWY_RESTRICT in, int64_t first, int64_t last, std::byte* HWY_RESTRICT row) {
  constexpr bool kHalfBytes = kFormat == KvFormat::kInt4;
  const RowF df;
  const float descale = DescaleOf(Magnitude(in + first, last - first), kFormat);
  if (!StoresElements(descale)) {
    std::memset(row + (kHalfBytes ? first / 2 : first), 0, kHalfBytes ? (last - first + 1) / 2 : last - first);
    return descale;
  }
  const RowVecF divisor = hn::Set(df, descale);
  int64_t i = first;
  for (; kRowLanes > 1 && i + kRowLanes <= last; i += kRowLanes) {
    const RowVecF x = hn::Div(hn::LoadU(df, in + i), divisor);
    if constexpr (kFormat == KvFormat::kInt8) {
      const hn::Rebind<int8_t, RowF> d8;
      hn::StoreU(hn::DemoteTo(d8, Integers(x, kInt8Max)), d8, reinterpret_cast<int8_t*>(row) + i);
    } else if constexpr (kFormat == KvFormat::kFp8E4m3) {
      const hn::Rebind<uint8_t, RowF> d8;
      hn::StoreU(hn::DemoteTo(d8, Fp8Bits(x)), d8, reinterpret_cast<uint8_t*>(row) + i);
    } else {
      EncodeInt4(Integers(x, kInt4Max), i, row);
    }
  }
  for (; i < last; ++i) StoreElement(in[i] / descale, row, i, kFormat);
  return descale;
}

// Whole vectors of elements [first, last). Returns the element that follows them. REQUIRES: at most 8 lanes for kInt4.
template <KvFormat kFormat, class D>
HWY_INLINE int64_t DequantizeVectors(D df, const std::byte* HWY_RESTRICT row, float descale, int64_t first,
                                     int64_t last, float* HWY_RESTRICT out) {
  constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(D()));
  const hn::RebindToSigned<D> di;
  const auto factor = hn::Set(df, descale);
  int64_t i = first;
  for (; kStep > 1 && i + kStep <= last; i += kStep) {
    hn::Vec<D> x;
    if constexpr (kFormat == KvFormat::kInt8) {
      const hn::Rebind<int8_t, D> d8;
      x = hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(row) + i)));
    } else if constexpr (kFormat == KvFormat::kFp8E4m3) {
      const hn::Rebind<uint8_t, D> d8;
      x = Fp8Values(df,
                    hn::PromoteTo(hn::RebindToUnsigned<D>(), hn::LoadU(d8, reinterpret_cast<const uint8_t*>(row) + i)));
    } else {
      x = hn::ConvertTo(df, DecodeInt4(row, i));
    }
    hn::StoreU(hn::Mul(x, factor), df, out + i);
  }
  return i;
}

template <KvFormat kFormat>
HWY_INLINE void DequantizeGroup(const std::byte* HWY_RESTRICT row, float descale, int64_t first, int64_t last,
                                float* HWY_RESTRICT out) {
  int64_t i = first;
  if constexpr (kFormat != KvFormat::kInt4)
    i = DequantizeVectors<kFormat>(hn::CappedTag<float, 16>(), row, descale, i, last, out);
  i = DequantizeVectors<kFormat>(RowF(), row, descale, i, last, out);
  for (; i < last; ++i) out[i] = LoadElement(row, i, kFormat) * descale;
}

template <KvFormat kFormat>
void QuantizeGroups(const float* in, const BlockLayout& layout, std::byte* row, std::byte* descales) {
  for (int64_t first = 0; first < layout.head_dim; first += layout.scale_group, descales += kDescaleBytes) {
    const int64_t last = std::min<int64_t>(first + layout.scale_group, layout.head_dim);
    const float descale = QuantizeGroup<kFormat>(in, first, last, row);
    std::memcpy(descales, &descale, sizeof(descale));
  }
}

template <KvFormat kFormat>
void DequantizeGroups(const std::byte* row, const std::byte* descales, const BlockLayout& layout, float* out) {
  for (int64_t first = 0; first < layout.head_dim; first += layout.scale_group, descales += kDescaleBytes) {
    float descale;
    std::memcpy(&descale, descales, sizeof(descale));
    DequantizeGroup<kFormat>(row, descale, first, std::min<int64_t>(first + layout.scale_group, layout.head_dim), out);
  }
}

// See QuantizeRow in kernels/quantize_kv.h. in: [head_dim].
inline void QuantizeOne(const float* in, const BlockLayout& layout, std::byte* row, std::byte* descales) {
  switch (layout.format) {
    case KvFormat::kF32:
      std::memcpy(row, in, layout.head_dim * sizeof(float));
      break;
    case KvFormat::kBf16:
      return EncodeBf16(in, layout.head_dim, row);
    case KvFormat::kF16:
      for (int64_t i = 0; i < layout.head_dim; ++i) StoreElement(in[i], row, i, KvFormat::kF16);
      break;
    case KvFormat::kFp8E4m3:
      return QuantizeGroups<KvFormat::kFp8E4m3>(in, layout, row, descales);
    case KvFormat::kInt8:
      return QuantizeGroups<KvFormat::kInt8>(in, layout, row, descales);
    case KvFormat::kInt4:
      return QuantizeGroups<KvFormat::kInt4>(in, layout, row, descales);
    case KvFormat::kUnspecified:
      break;
  }
}

// See DequantizeRow in kernels/quantize_kv.h. out: [head_dim].
inline void DequantizeOne(const std::byte* row, const std::byte* descales, const BlockLayout& layout, float* out) {
  switch (layout.format) {
    case KvFormat::kF32:
      std::memcpy(out, row, layout.head_dim * sizeof(float));
      break;
    case KvFormat::kBf16:
      return DecodeBf16(row, layout.head_dim, out);
    case KvFormat::kF16:
      for (int64_t i = 0; i < layout.head_dim; ++i) out[i] = LoadElement(row, i, KvFormat::kF16);
      break;
    case KvFormat::kFp8E4m3:
      return DequantizeGroups<KvFormat::kFp8E4m3>(row, descales, layout, out);
    case KvFormat::kInt8:
      return DequantizeGroups<KvFormat::kInt8>(row, descales, layout, out);
    case KvFormat::kInt4:
      return DequantizeGroups<KvFormat::kInt4>(row, descales, layout, out);
    case KvFormat::kUnspecified:
      break;
  }
}

}  // namespace kvmesh::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVMESH_KERNELS_CPU_QUANTIZE_KV_INL_H_
