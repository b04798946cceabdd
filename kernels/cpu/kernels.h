// The Highway variant: one instance per instruction set, the best one that the CPU has chosen at run time.
// Arguments are checked by the caller. Where built without Highway these are never called.
#ifndef KVMESH_KERNELS_CPU_KERNELS_H_
#define KVMESH_KERNELS_CPU_KERNELS_H_

#include <cstdint>
#include <span>

#include "kernels/kv_pool_view.h"
#include "kernels/paged_attention.h"

namespace kvmesh::cpu {

// See kernels/reshape_and_cache.h. Same bits as the reference.
void ReshapeAndCache(std::span<const float> key, std::span<const float> value, std::span<const int64_t> slot_mapping,
                     int32_t layer, const KvPoolView& pool);

// See kernels/paged_attention.h. All instruction sets with fused multiply-add (AVX2, AVX-512, NEON) give the same bits.
void PagedAttention(std::span<const float> query, std::span<const AttentionSequence> sequences, int32_t layer,
                    const AttentionParams& params, const KvPoolView& pool, std::span<float> out, std::span<float> lse);

}  // namespace kvmesh::cpu

#endif  // KVMESH_KERNELS_CPU_KERNELS_H_
