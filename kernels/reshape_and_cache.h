// Append: writes the new keys and values of one layer into the slots of a paged pool.
#ifndef KVMESH_KERNELS_RESHAPE_AND_CACHE_H_
#define KVMESH_KERNELS_RESHAPE_AND_CACHE_H_

#include <cstdint>
#include <span>

#include "kernels/kv_pool_view.h"

namespace kvmesh {

// key, value: fp32 [tokens, kv_heads, head_dim], dense. slot_mapping: [tokens]; slot s writes token s % block_tokens of
// block s / block_tokens, and -1 skips the token. Rows are written in the pool's format, with descales where it has
// them, as kernels/quantize_kv.h says.
// REQUIRES: K and V apart, no MLA; key.size() == value.size() == slot_mapping.size() * kv_heads * head_dim; slots
// inside the pool. Bit-identical for any split of the tokens into calls. Thread safe for disjoint slots.
void ReshapeAndCache(std::span<const float> key, std::span<const float> value, std::span<const int64_t> slot_mapping,
                     int32_t layer, const KvPoolView& pool);

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_RESHAPE_AND_CACHE_H_
