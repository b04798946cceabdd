// The kernels in plain double precision, one element at a time: the oracle of the tests, and a variant that runs
// anywhere. Same arguments, same results up to rounding, same row invariance as the functions of the same name in
// kernels/.
#ifndef KVMESH_KERNELS_REFERENCE_REFERENCE_H_
#define KVMESH_KERNELS_REFERENCE_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention_rows.h"
#include "kernels/block_copy.h"
#include "kernels/kv_pool_view.h"
#include "kernels/merge_states.h"
#include "kernels/mla.h"
#include "kernels/paged_attention.h"
#include "kernels/stored_rows.h"

namespace kvmesh::reference {

// x: [rows.count, head_dim], dense. See QuantizeRow in kernels/quantize_kv.h.
void QuantizeRows(const float* x, const BlockLayout& layout, const StoredRows<std::byte>& rows);

// out: [rows.count, head_dim], dense. See DequantizeRow in kernels/quantize_kv.h.
void DequantizeRows(const StoredRows<const std::byte>& rows, const BlockLayout& layout, float* out);

// See kernels/reshape_and_cache.h.
void ReshapeAndCache(std::span<const float> key, std::span<const float> value, std::span<const int64_t> slot_mapping,
                     int32_t layer, const KvPoolView& pool);

// See kernels/paged_attention.h; accumulates in double.
void PagedAttention(std::span<const float> query, std::span<const AttentionSequence> sequences, int32_t layer,
                    const AttentionParams& params, const KvPoolView& pool, std::span<float> out,
                    std::span<float> lse = {});

// The same for some rows and a run of keys, without sinks.
void AttendRows(const AttentionCall& call, const AttentionRows& rows, KeyRange keys, RowStates out);

// See kernels/mla.h; accumulates in double.
void ConcatAndCacheMla(std::span<const float> latent, std::span<const float> rope_key,
                       std::span<const int64_t> slot_mapping, int32_t layer, const KvPoolView& pool);
void MlaPagedDecode(std::span<const float> query, std::span<const AttentionSequence> sequences, int32_t layer,
                    const MlaParams& params, const KvPoolView& pool, std::span<float> out, std::span<float> lse = {});

// See kernels/merge_states.h; weighs and adds in double.
void MergeStates(std::span<const AttentionState> states, int32_t head_dim, std::span<float> out, std::span<float> lse);

// See kernels/block_copy.h; byte by byte or row by row.
void CopyBlocks(const KvPoolView& from, const KvPoolView& to, std::span<const BlockPair> pairs);
void GatherBlocks(const KvPoolView& pool, std::span<const uint32_t> blocks, const ShardRange& range,
                  std::span<std::byte> out);
void ScatterBlocks(std::span<const std::byte> in, const KvPoolView& pool, std::span<const uint32_t> blocks,
                   const ShardRange& range);

}  // namespace kvmesh::reference

#endif  // KVMESH_KERNELS_REFERENCE_REFERENCE_H_
