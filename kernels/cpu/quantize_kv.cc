#include "kernels/quantize_kv.h"

#include "kernels/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize_kv.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/quantize_kv-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvmesh::cpu::HWY_NAMESPACE {

void Quantize(const float* x, const BlockLayout& layout, const StoredRows<std::byte>& rows) {
  for (int64_t i = 0; i < rows.count; ++i, x += layout.head_dim) QuantizeOne(x, layout, rows.Row(i), rows.Descales(i));
}

void Dequantize(const StoredRows<const std::byte>& rows, const BlockLayout& layout, float* out) {
  for (int64_t i = 0; i < rows.count; ++i, out += layout.head_dim) {
    DequantizeOne(rows.Row(i), rows.Descales(i), layout, out);
  }
}

}  // namespace kvmesh::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvmesh::cpu {

HWY_EXPORT(Quantize);
HWY_EXPORT(Dequantize);

void QuantizeRows(const float* x, const BlockLayout& layout, const StoredRows<std::byte>& rows) {
  HWY_DYNAMIC_DISPATCH(Quantize)(x, layout, rows);
}

void DequantizeRows(const StoredRows<const std::byte>& rows, const BlockLayout& layout, float* out) {
  HWY_DYNAMIC_DISPATCH(Dequantize)(rows, layout, out);
}

}  // namespace kvmesh::cpu
#endif  // HWY_ONCE
