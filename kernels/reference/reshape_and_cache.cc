#include "kernels/reshape_and_cache.h"

#include "kernels/element.h"
#include "kernels/reference/reference.h"

namespace kvmesh::reference {

void ReshapeAndCache(std::span<const float> key, std::span<const float> value, std::span<const int64_t> slot_mapping,
                     int32_t layer, const KvPoolView& pool) {
  const BlockLayout& layout = pool.layout;
  for (size_t t = 0; t < slot_mapping.size(); ++t) {
    const int64_t slot = slot_mapping[t];
    if (slot < 0) continue;
    for (int64_t head = 0; head < layout.kv_heads; ++head) {
      const size_t row = (t * layout.kv_heads + head) * layout.head_dim;
      std::byte* k = pool.At(slot / layout.block_tokens, layer, 0, head, slot % layout.block_tokens);
      std::byte* v = pool.At(slot / layout.block_tokens, layer, 1, head, slot % layout.block_tokens);
      for (int64_t d = 0; d < layout.head_dim; ++d) {
        StoreElement(key[row + d], k, d, layout.format);
        StoreElement(value[row + d], v, d, layout.format);
      }
    }
  }
}

}  // namespace kvmesh::reference
