// Attention on processors with AVX-512, its BF16 dot products and VNNI.
#ifndef KVMESH_KERNELS_CPU_AVX512_ATTENTION_H_
#define KVMESH_KERNELS_CPU_AVX512_ATTENTION_H_

#include "kernels/attention_rows.h"

namespace kvmesh::avx512 {

// Whether this build has the variant and the processor runs it.
bool Supported();

// See kernels/attention_rows.h. fp32 keys and values are multiplied as they are. bf16 ones meet a query and weights
// that are sums of two bf16 numbers, int8 ones meet them as 15-bit and 16-bit integers under a common scale of the row
// (of the tile, for weights), all with fp32 or exact sums.
// Layouts of other formats, or with rows that are not whole vectors of 16 fp32, 32 bf16 or 64 int8 elements, are left
// to Highway. REQUIRES: Supported().
void AttendRows(const AttentionCall& call, const AttentionRows& rows, KeyRange keys, RowStates out);

}  // namespace kvmesh::avx512

#endif  // KVMESH_KERNELS_CPU_AVX512_ATTENTION_H_
