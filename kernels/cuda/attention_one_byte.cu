#include "kernels/cuda/tensor_launch.cuh"

namespace kvmesh::cuda {

cudaError_t LaunchOneByteAttention(const AttentionLaunch& launch, bool* launched) {
  if (launch.args.pool.layout.format == KvFormat::kInt8) return LaunchFormat<KvFormat::kInt8>(launch, launched);
  if (launch.args.pool.layout.format == KvFormat::kFp8E4m3) return LaunchFormat<KvFormat::kFp8E4m3>(launch, launched);
  *launched = false;
  return cudaSuccess;
}

}  // namespace kvmesh::cuda
