// How the launchers of this folder size their grids.
#ifndef KVMESH_KERNELS_CUDA_LAUNCH_H_
#define KVMESH_KERNELS_CUDA_LAUNCH_H_

#include <algorithm>
#include <cstdint>

namespace kvmesh::cuda {

inline constexpr int kThreads = 256;

// Blocks for `work` threads; kernels loop over what is beyond the limit.
inline unsigned BlocksFor(int64_t work, int threads = kThreads) {
  return static_cast<unsigned>(std::clamp<int64_t>((work + threads - 1) / threads, 1, 1 << 16));
}

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_LAUNCH_H_
