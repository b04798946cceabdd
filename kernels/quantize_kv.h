// Rows and blocks of K and V between fp32 and the stored formats. In formats with descales a row is cut into groups of
// the layout's `scale_group` elements, each with one fp32 descale:
//
//   descale = largest magnitude of the group / largest number of the format (448 fp8, 127 int8, 7 int4)
//   stored  = x / descale, rounded to nearest, ties to even, and clamped to the format
//   value   = stored * descale
//
// all in fp32, where a product may round past the largest fp32 number to infinity. A group of zeros, or one so small
// that its descale underflows to 0, is stored as zeros. A group with a NaN or an infinity is stored as zeros with a NaN
// for descale: all of its values read as NaN, those of no other group. The same bits on every machine and in every
// variant.
#ifndef KVMESH_KERNELS_QUANTIZE_KV_H_
#define KVMESH_KERNELS_QUANTIZE_KV_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/element.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"

namespace kvmesh {

// The largest number that an element of `format` stores. REQUIRES: a format with descales.
KVMESH_HOST_DEVICE constexpr float LargestStored(KvFormat format) {
  if (format == KvFormat::kFp8E4m3) return kFp8Max;
  return static_cast<float>(format == KvFormat::kInt8 ? kInt8Max : kInt4Max);
}

// The descale of a group. `magnitude`: the largest of the fp32 bits, without the sign bit, of its elements.
KVMESH_HOST_DEVICE constexpr float DescaleOf(uint32_t magnitude, KvFormat format) {
  return magnitude >= 0x7f800000u ? BitCast<float>(0x7fc00000u) : BitCast<float>(magnitude) / LargestStored(format);
}

// Whether a group with this descale has elements other than zeros.
KVMESH_HOST_DEVICE constexpr bool StoresElements(float descale) { return descale > 0; }

// Whether values converted from `from` to `to` and back are the same bits.
constexpr bool ConvertsBack(KvFormat from, KvFormat to) {
  return from == to || (to == KvFormat::kF32 && (from == KvFormat::kF16 || from == KvFormat::kBf16));
}

// Writes x as one row of `layout` to `row`, and its descales, if the format has any, to `descales`.
// REQUIRES: x.size() == layout.head_dim; for kInt4 an even scale_group. Formats without descales round to nearest, ties
// to even, keep a NaN a NaN, and overflow to infinity.
void QuantizeRow(std::span<const float> x, const BlockLayout& layout, std::byte* row, std::byte* descales);

// Reads one row of `layout`. REQUIRES: out.size() == layout.head_dim.
void DequantizeRow(const std::byte* row, const std::byte* descales, const BlockLayout& layout, std::span<float> out);

// Writes the values of the block at `in` to the block at `out`; bytes of `out` that are neither row nor descale stay.
// Rows of equal format are copied bit by bit, all others go through fp32. The blocks do not overlap.
// REQUIRES: equal layers, kv_heads, block_tokens, head_dim and latent_dim; with equal formats equal scale_group;
// block_bytes bytes each.
void ConvertBlock(const BlockLayout& from, std::span<const std::byte> in, const BlockLayout& to,
                  std::span<std::byte> out);

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_QUANTIZE_KV_H_
