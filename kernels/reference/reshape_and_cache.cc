#include "kernels/reshape_and_cache.h"

#include "kernels/reference/reference.h"
#include "kernels/stored_rows.h"

namespace kvmesh::reference {

void ReshapeAndCache(std::span<const float> key, std::span<const float> value, std::span<const int64_t> slot_mapping,
                     int32_t layer, const KvPoolView& pool) {
  const BlockLayout& layout = pool.layout;
  for (size_t t = 0; t < slot_mapping.size(); ++t) {
    if (slot_mapping[t] < 0) continue;
    std::byte* block = pool.base + slot_mapping[t] / layout.block_tokens * pool.slot_stride;
    const int64_t token = slot_mapping[t] % layout.block_tokens;
    const size_t at = t * layout.kv_heads * layout.head_dim;
    QuantizeRows(&key[at], layout, RowsOfHeads(layout, block, layer, 0, token));
    QuantizeRows(&value[at], layout, RowsOfHeads(layout, block, layer, 1, token));
  }
}

}  // namespace kvmesh::reference
