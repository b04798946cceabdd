#include "kernels/cuda/tensor_launch.cuh"

namespace kvmesh::cuda {

cudaError_t LaunchTwoByteAttention(const AttentionLaunch& launch, bool* launched) {
  if (launch.args.pool.layout.format == KvFormat::kBf16) return LaunchFormat<KvFormat::kBf16>(launch, launched);
#ifdef KVMESH_CUDA_FULL
  if (launch.args.pool.layout.format == KvFormat::kF16) return LaunchFormat<KvFormat::kF16>(launch, launched);
#endif
  *launched = false;
  return cudaSuccess;
}

}  // namespace kvmesh::cuda
