// The pieces that attention is launched from; each source compiles some instances.
#ifndef KVMESH_KERNELS_CUDA_ATTENTION_LAUNCH_H_
#define KVMESH_KERNELS_CUDA_ATTENTION_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention_args.h"

namespace kvmesh::cuda {

// How many queries the longest sequence has; args has the rest, max_queries being those of a split sequence.
struct AttentionLaunch {
  AttentionArgs args;
  int64_t most_queries = 0;
  cudaStream_t stream = nullptr;
};

// Launches the split and the whole sequences, on tensor cores, for a pool of `format`; without the merge. *launched:
// whether this format and head dimension are compiled in.
cudaError_t LaunchTwoByteAttention(const AttentionLaunch& launch, bool* launched);
cudaError_t LaunchOneByteAttention(const AttentionLaunch& launch, bool* launched);

// Launches kernel(args) with blocks for `queries` queries, `rows` rows a tile.
template <class Kernel>
cudaError_t LaunchTiles(Kernel kernel, AttentionLaunch launch, int64_t queries, int64_t rows, int64_t spans,
                        int threads, size_t shared_bytes) {
  AttentionArgs& args = launch.args;
  const int64_t tiles = (queries * args.group() + rows - 1) / rows;
  const int64_t blocks = args.batch * tiles * args.pool.layout.kv_heads;
  if (blocks > 0x7fffffff || spans > 0xffff) return cudaErrorInvalidValue;
  if (blocks == 0) return cudaSuccess;
  args.row_tiles = static_cast<int32_t>(tiles);
  if (shared_bytes > 48 << 10) {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (status != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return cudaErrorNotSupported;
    }
  }
  kernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(spans)), threads, shared_bytes, launch.stream>>>(
      args);
  return cudaGetLastError();
}

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_ATTENTION_LAUNCH_H_
