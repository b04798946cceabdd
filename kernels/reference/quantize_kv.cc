#include "kernels/quantize_kv.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/element.h"
#include "kernels/reference/reference.h"

namespace kvmesh::reference {
namespace {

// Elements [first, last) of a row of a format with descales. Returns the descale.
float QuantizeGroup(const float* x, int64_t first, int64_t last, KvFormat format, std::byte* row) {
  uint32_t magnitude = 0;
  for (int64_t i = first; i < last; ++i) magnitude = std::max(magnitude, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  const float descale = DescaleOf(magnitude, format);
  for (int64_t i = first; i < last; ++i) {
    StoreElement(StoresElements(descale) ? x[i] / descale : 0.0f, row, i, format);
  }
  return descale;
}

}  // namespace

void QuantizeRows(const float* x, const BlockLayout& layout, const StoredRows<std::byte>& rows) {
  for (int64_t r = 0; r < rows.count; ++r, x += layout.head_dim) {
    for (int64_t i = 0; layout.scale_group == 0 && i < layout.head_dim; ++i) {
      StoreElement(x[i], rows.Row(r), i, layout.format);
    }
    for (int64_t g = 0; g < layout.scale_groups(); ++g) {
      const int64_t first = g * layout.scale_group;
      const int64_t last = std::min<int64_t>(first + layout.scale_group, layout.head_dim);
      const float descale = QuantizeGroup(x, first, last, layout.format, rows.Row(r));
      std::memcpy(rows.Descales(r) + g * kDescaleBytes, &descale, sizeof(descale));
    }
  }
}

void DequantizeRows(const StoredRows<const std::byte>& rows, const BlockLayout& layout, float* out) {
  const int32_t elements = layout.head_dim;
  for (int64_t r = 0; r < rows.count; ++r, out += elements) {
    const std::byte* row = rows.Row(r);
    for (int32_t i = 0; i < elements; ++i) out[i] = LoadElement(row, i, layout.format);
    for (int32_t g = 0; g < layout.scale_groups(); ++g) {
      float descale;
      std::memcpy(&descale, rows.Descales(r) + g * kDescaleBytes, sizeof(descale));
      const int32_t first = g * layout.scale_group;
      const int32_t last = std::min(first + layout.scale_group, elements);
      for (int32_t i = first; i < last; ++i) out[i] *= descale;
    }
  }
}

}  // namespace kvmesh::reference
