#include "kernels/reshape_and_cache.h"

#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reshape_and_cache.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvmesh::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Bf16FromF32 over `count` elements, a multiple of 8.
void RoundToBf16(const float* HWY_RESTRICT in, int64_t count, uint16_t* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t i = 0; i < count; ++i) out[i] = Bf16FromF32(in[i]);
#else
  const hn::CappedTag<float, 8> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<uint16_t, decltype(df)> d16;
  for (int64_t i = 0; i < count; i += hn::MaxLanes(df)) {
    const auto value = hn::LoadU(df, in + i);
    const auto bits = hn::BitCast(du, value);
    const auto high = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(high, hn::Set(du, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))));
    const auto quiet = hn::Or(high, hn::Set(du, 0x40u));
    const auto chosen = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, chosen)), d16, out + i);
  }
#endif
}

void StoreRow(const float* HWY_RESTRICT in, int64_t count, KvFormat format, std::byte* out) {
  switch (format) {
    case KvFormat::kF32:
      std::memcpy(out, in, count * sizeof(float));
      break;
    case KvFormat::kBf16:
      RoundToBf16(in, count, reinterpret_cast<uint16_t*>(out));
      break;
    default:
      for (int64_t i = 0; i < count; ++i) StoreElement(in[i], out, i, format);
  }
}

void Append(const float* key, const float* value, std::span<const int64_t> slot_mapping, int32_t layer,
            const KvPoolView& pool) {
  const BlockLayout& layout = pool.layout;
  const int64_t row = int64_t{layout.kv_heads} * layout.head_dim;
  for (size_t t = 0; t < slot_mapping.size(); ++t, key += row, value += row) {
    if (slot_mapping[t] < 0) continue;
    const int64_t block = slot_mapping[t] / layout.block_tokens;
    const int64_t token = slot_mapping[t] % layout.block_tokens;
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      const int64_t at = head * layout.head_dim;
      StoreRow(key + at, layout.head_dim, layout.format, pool.At(block, layer, 0, head, token));
      StoreRow(value + at, layout.head_dim, layout.format, pool.At(block, layer, 1, head, token));
    }
  }
}

}  // namespace kvmesh::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvmesh::cpu {

HWY_EXPORT(Append);

void ReshapeAndCache(std::span<const float> key, std::span<const float> value, std::span<const int64_t> slot_mapping,
                     int32_t layer, const KvPoolView& pool) {
  HWY_DYNAMIC_DISPATCH(Append)(key.data(), value.data(), slot_mapping, layer, pool);
}

}  // namespace kvmesh::cpu
#endif  // HWY_ONCE
