#include "kernels/reshape_and_cache.h"

#include "kernels/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/reference/reference.h"
#include "kernels/variant.h"

namespace kvmesh {

void ReshapeAndCache(std::span<const float> key, std::span<const float> value, std::span<const int64_t> slot_mapping,
                     int32_t layer, const KvPoolView& pool) {
  const BlockLayout& layout = pool.layout;
  Require(KvFormatBits(layout.format) >= 16 && !layout.mla(), "ReshapeAndCache: a format or layout it does not write");
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
      return cpu::ReshapeAndCache(key, value, slot_mapping, layer, pool);
  }
}

}  // namespace kvmesh
