#include "kernels/reshape_and_cache.h"

#include "kernels/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/reference/reference.h"
#include "kernels/stored_rows.h"
#include "kernels/variant.h"

namespace kvmesh {
namespace {

void Append(const float* key, const float* value, std::span<const int64_t> slot_mapping, int32_t layer,
            const KvPoolView& pool) {
  const BlockLayout& layout = pool.layout;
  const int64_t elements = int64_t{layout.kv_heads} * layout.head_dim;
  for (size_t t = 0; t < slot_mapping.size(); ++t, key += elements, value += elements) {
    if (slot_mapping[t] < 0) continue;
    std::byte* block = pool.base + slot_mapping[t] / layout.block_tokens * pool.slot_stride;
    const int64_t token = slot_mapping[t] % layout.block_tokens;
    cpu::QuantizeRows(key, layout, RowsOfHeads(layout, block, layer, 0, token));
    cpu::QuantizeRows(value, layout, RowsOfHeads(layout, block, layer, 1, token));
  }
}

}  // namespace

void ReshapeAndCache(std::span<const float> key, std::span<const float> value, std::span<const int64_t> slot_mapping,
                     int32_t layer, const KvPoolView& pool) {
  const BlockLayout& layout = pool.layout;
  Require(KvFormatBits(layout.format) > 0 && !layout.mla(), "ReshapeAndCache: no format, or an MLA layout");
  Require(layer >= 0 && layer < layout.layers, "ReshapeAndCache: layer out of range");
  const size_t elements = slot_mapping.size() * static_cast<size_t>(layout.kv_heads) * layout.head_dim;
  Require(key.size() == elements && value.size() == elements,
          "ReshapeAndCache: key and value are not [tokens, kv_heads, head_dim]");
  const int64_t limit = pool.slots * layout.block_tokens;
  for (int64_t slot : slot_mapping) Require(slot >= -1 && slot < limit, "ReshapeAndCache: slot outside the pool");
  switch (CurrentVariant()) {
    case KernelVariant::kReference:
      return reference::ReshapeAndCache(key, value, slot_mapping, layer, pool);
    case KernelVariant::kHighway:
    case KernelVariant::kAvx512:
      return Append(key.data(), value.data(), slot_mapping, layer, pool);
  }
}

}  // namespace kvmesh
