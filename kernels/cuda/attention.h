// CUDA: paged attention (decode, verify, chunked prefill) and MLA. Same contracts as kernels/paged_attention.h and
// kernels/mla.h: causal, GQA, window, soft cap, sinks, empty rows, rows of unseen slots never read into a result.
// Asynchronous, without allocation, as kernels/cuda/append.h says.
//
// fp16, bf16, fp8 and int8 pools go through tensor cores where their head dimension is compiled in (KVMESH_CUDA_FULL:
// every one; else bf16, fp8 and int8 up to 128); fp32 and int4 pools, MLA, and what is not compiled in, through plain
// fp32 arithmetic. On tensor cores weights are rounded to the pool's type, or to bf16 for one-byte formats, and a query
// goes in as a rounded number plus a rounded rest; fp16 pools take queries up to 65504.
// Descales stand at multiples of 4 bytes.
//
// Determinism: no atomics. A sequence of at most 16 queries has its keys split at multiples of 512 positions and the
// states merged in order; one of more queries is computed in one go. For either kind a query's result is the same bits
// whatever the batch, the bounds, the chunk it is part of and the other queries are; between the two kinds, and from
// the CPU's, it differs by rounding.
#ifndef KVMESH_KERNELS_CUDA_ATTENTION_H_
#define KVMESH_KERNELS_CUDA_ATTENTION_H_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/device_view.h"
#include "kernels/mla.h"
#include "kernels/paged_attention.h"

namespace kvmesh::cuda {

// What the host knows of the sequences: none has more queries, or a higher first_position + queries. Below 2^31.
struct AttentionBounds {
  int64_t max_queries = 0;
  int64_t max_length = 0;
};

// Bytes of workspace. value_dim: head_dim, or latent_dim with MLA, where window is 0.
int64_t AttentionWorkspace(int64_t sequences, const AttentionBounds& bounds, int32_t q_heads, int32_t value_dim,
                           int64_t window);

// query, out: fp32 [sum of queries, q_heads, head_dim]; lse: empty, or [sum of queries, q_heads]; params.sinks is
// device memory. workspace: aligned to 16, its content of no use to the caller; two calls at once need two. Returns
// cudaErrorInvalidValue where sizes, bounds or dimensions are not as the CPU function requires, or the workspace is
// small; cudaErrorNotSupported where the device's shared memory is.
cudaError_t PagedAttention(DeviceView<const float> query, DeviceView<const DeviceSequence> sequences,
                           const AttentionBounds& bounds, int32_t layer, const AttentionParams& params,
                           const KvPoolView& pool, DeviceView<std::byte> workspace, DeviceView<float> out,
                           DeviceView<float> lse, cudaStream_t stream);

// query: [sum of queries, q_heads, latent_dim + rope_dim]; out: [sum of queries, q_heads, latent_dim].
cudaError_t MlaPagedDecode(DeviceView<const float> query, DeviceView<const DeviceSequence> sequences,
                           const AttentionBounds& bounds, int32_t layer, const MlaParams& params,
                           const KvPoolView& pool, DeviceView<std::byte> workspace, DeviceView<float> out,
                           DeviceView<float> lse, cudaStream_t stream);

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_ATTENTION_H_
