// What functions need that run on the host and, in CUDA code, on the device.
#ifndef KVMESH_KERNELS_HOST_DEVICE_H_
#define KVMESH_KERNELS_HOST_DEVICE_H_

// Marks a function for both; empty without nvcc.
#ifdef __CUDACC__
#define KVMESH_HOST_DEVICE __host__ __device__
#else
#define KVMESH_HOST_DEVICE
#endif

namespace kvmesh {

// std::bit_cast, which nvcc takes for a function of the host alone.
template <class To, class From>
KVMESH_HOST_DEVICE constexpr To BitCast(From from) {
  return __builtin_bit_cast(To, from);
}

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_HOST_DEVICE_H_
