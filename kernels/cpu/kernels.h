// The Highway variant: one instance per instruction set, the best one that the CPU has chosen at run time.
// Arguments are checked by the caller. Where built without Highway these are never called.
#ifndef KVMESH_KERNELS_CPU_KERNELS_H_
#define KVMESH_KERNELS_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention_rows.h"
#include "kernels/kv_pool_view.h"
#include "kernels/mla.h"
#include "kernels/stored_rows.h"

namespace kvmesh::cpu {

// x: [rows.count, head_dim], dense. See QuantizeRow in kernels/quantize_kv.h. Same bits as the reference.
void QuantizeRows(const float* x, const BlockLayout& layout, const StoredRows<std::byte>& rows);

// out: [rows.count, head_dim], dense. See DequantizeRow in kernels/quantize_kv.h. Same bits as the reference.
void DequantizeRows(const StoredRows<const std::byte>& rows, const BlockLayout& layout, float* out);

// See kernels/attention_rows.h. All instruction sets with fused multiply-add (AVX2, AVX-512, NEON) give the same bits.
void AttendRows(const AttentionCall& call, const AttentionRows& rows, KeyRange keys, RowStates out);

// See kernels/mla.h. The same bits on all instruction sets, likewise.
void MlaPagedDecode(std::span<const float> query, std::span<const AttentionSequence> sequences, int32_t layer,
                    const MlaParams& params, const KvPoolView& pool, std::span<float> out, std::span<float> lse);

}  // namespace kvmesh::cpu

#endif  // KVMESH_KERNELS_CPU_KERNELS_H_
