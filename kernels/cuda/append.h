// CUDA: append to a paged pool, and conversion of stored blocks. Same contracts as kernels/reshape_and_cache.h,
// kernels/mla.h and kernels/quantize_kv.h, and the same bytes as these write, bit for bit; with kUnspecified formats,
// shapes that disagree or sizes out of range they return cudaErrorInvalidValue and launch nothing.
//
// All functions of kernels/cuda are asynchronous: arguments are memory of the current device, work is put on `stream`,
// nothing is allocated, and what is returned is the status of the launch. Rows and blocks start at multiples of their
// element's size. Indexes in device memory (slots, block ids) are not checked. Deterministic: no atomics, every byte
// has one writer.
#ifndef KVMESH_KERNELS_CUDA_APPEND_H_
#define KVMESH_KERNELS_CUDA_APPEND_H_

#include <cuda_runtime_api.h>

#include "kernels/cuda/device_view.h"
#include "kernels/kv_pool_view.h"

namespace kvmesh::cuda {

// key, value: [tokens, kv_heads, head_dim]; slot_mapping: [tokens], -1 skips a token.
cudaError_t ReshapeAndCache(DeviceView<const float> key, DeviceView<const float> value,
                            DeviceView<const int64_t> slot_mapping, int32_t layer, const KvPoolView& pool,
                            cudaStream_t stream);

// latent: [tokens, latent_dim]; rope_key: [tokens, rope_dim].
cudaError_t ConcatAndCacheMla(DeviceView<const float> latent, DeviceView<const float> rope_key,
                              DeviceView<const int64_t> slot_mapping, int32_t layer, const KvPoolView& pool,
                              cudaStream_t stream);

// quantize_kv / dequantize_kv: the values of block from_ids[i] of one pool become block to_ids[i] of the other, as
// ConvertBlock has them. Empty ids stand for the blocks 0 .. count - 1; `count` is the number of either's ids. The
// formats differ: equal ones are CopyBlocks'. The blocks do not overlap and none is written twice.
cudaError_t ConvertBlocks(const KvPoolView& from, DeviceView<const uint32_t> from_ids, const KvPoolView& to,
                          DeviceView<const uint32_t> to_ids, int64_t count, cudaStream_t stream);

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_APPEND_H_
