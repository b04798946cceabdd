// Instances of attention on tensor cores, and the choice among them.
#ifndef KVMESH_KERNELS_CUDA_TENSOR_LAUNCH_CUH_
#define KVMESH_KERNELS_CUDA_TENSOR_LAUNCH_CUH_

#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/tensor_attention_body.h"

namespace kvmesh::cuda {

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads) TensorKernel(AttentionArgs args) {
  Device m;
  TensorAttentionBody<Shape>(m, args);
}

template <KvFormat kFormat, int kHeadDim>
cudaError_t LaunchTensor(const AttentionLaunch& launch) {
  using Split = TensorShape<kFormat, kHeadDim, true>;
  using Whole = TensorShape<kFormat, kHeadDim, false>;
  const cudaError_t status = LaunchTiles(TensorKernel<Split>, launch, launch.args.max_queries, Split::kRows,
                                         launch.args.spans, Split::kThreads, Split::kSharedBytes);
  if (status != cudaSuccess || launch.most_queries <= kSplitQueries) return status;
  return LaunchTiles(TensorKernel<Whole>, launch, launch.most_queries, Whole::kRows, 1, Whole::kThreads,
                     Whole::kSharedBytes);
}

// The instance of the smallest compiled head dimension that holds head_dim.
template <KvFormat kFormat>
cudaError_t LaunchFormat(const AttentionLaunch& launch, bool* launched) {
  const int32_t head_dim = launch.args.pool.layout.head_dim;
  *launched = true;
#ifdef KVMESH_CUDA_FULL
  if (head_dim <= 64) return LaunchTensor<kFormat, 64>(launch);
  if (head_dim <= 80) return LaunchTensor<kFormat, 80>(launch);
  if (head_dim <= 96) return LaunchTensor<kFormat, 96>(launch);
  if (head_dim <= 128) return LaunchTensor<kFormat, 128>(launch);
  if (head_dim <= 256) return LaunchTensor<kFormat, 256>(launch);
#else
  if (head_dim <= 128) return LaunchTensor<kFormat, 128>(launch);
#endif
  *launched = false;
  return cudaSuccess;
}

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_TENSOR_LAUNCH_CUH_
