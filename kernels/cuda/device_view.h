// Memory of the device as the functions of this folder take it.
#ifndef KVMESH_KERNELS_CUDA_DEVICE_VIEW_H_
#define KVMESH_KERNELS_CUDA_DEVICE_VIEW_H_

#include <cstdint>

namespace kvmesh::cuda {

// `size` elements at an address of the device; only kernels read or write them. Owns nothing.
template <class T>
struct DeviceView {
  T* data = nullptr;
  int64_t size = 0;

  constexpr bool empty() const { return size == 0; }
};

// What AttentionSequence is to the CPU, for an array of them in device memory. A kernel cannot check block ids: that
// they lie inside the pool, and the table covers first_position + queries tokens, is the caller's to know.
struct DeviceSequence {
  const uint32_t* block_table = nullptr;  // device memory
  int64_t first_position = 0;
  int64_t queries = 0;
  int64_t first_query = 0;  // index of its first query in the call: the sum of the queries of those before it
};

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_DEVICE_VIEW_H_
