// CUDA: stored blocks as bytes. Same contracts as kernels/block_copy.h and kernels/block_checksum.h, same bytes and
// same sums. Asynchronous and deterministic as kernels/cuda/append.h says; cudaErrorInvalidValue as there.
#ifndef KVMESH_KERNELS_CUDA_BLOCK_BYTES_H_
#define KVMESH_KERNELS_CUDA_BLOCK_BYTES_H_

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/block_copy.h"
#include "kernels/cuda/device_view.h"

namespace kvmesh::cuda {

cudaError_t CopyBlocks(const KvPoolView& from, const KvPoolView& to, DeviceView<const BlockPair> pairs,
                       cudaStream_t stream);

// out: [blocks, bytes of a shard], one dense buffer.
cudaError_t GatherBlocks(const KvPoolView& pool, DeviceView<const uint32_t> blocks, const ShardRange& range,
                         DeviceView<std::byte> out, cudaStream_t stream);
cudaError_t ScatterBlocks(DeviceView<const std::byte> in, const KvPoolView& pool, DeviceView<const uint32_t> blocks,
                          const ShardRange& range, cudaStream_t stream);

// Bytes of BlockChecksums' workspace for `blocks` blocks of `payload_bytes`.
int64_t BlockChecksumsWorkspace(int64_t blocks, int64_t payload_bytes, int64_t header_bytes);

// sums[i] = BlockChecksum(headers[i], the first payload_bytes bytes of slot blocks[i]). headers: [blocks,
// header_bytes]. workspace: aligned to 8; its content is of no use to the caller.
cudaError_t BlockChecksums(const KvPoolView& pool, DeviceView<const uint32_t> blocks, int64_t payload_bytes,
                           DeviceView<const std::byte> headers, DeviceView<std::byte> workspace,
                           DeviceView<uint64_t> sums, cudaStream_t stream);

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_BLOCK_BYTES_H_
