// How long the CUDA kernels take, beside how fast this device reads memory.
#ifndef KVMESH_KERNELS_CUDA_CHECK_TIMING_H_
#define KVMESH_KERNELS_CUDA_CHECK_TIMING_H_

#include <cstdint>
#include <string>
#include <vector>

namespace kvmesh::cuda {

// One measurement: the median of several launches.
struct Timing {
  std::string name;
  double seconds = 0;
  double bytes = 0;   // that the kernel has to move at least
  double tokens = 0;  // that it attends for or appends; 0: it has none
  double probe = 0;   // of the device's read bandwidth, measured in the same run

  double bandwidth() const { return bytes / seconds; }
  double ratio() const { return bandwidth() / probe; }
};

// Bytes per second of a read of `bytes` bytes of device memory.
double ProbeRead(int64_t bytes);

// Decode (bf16, fp8, int8; contexts of 1k, 8k, 32k; batches of 1 and 32; GQA 1, 4, 8), prefill, append, gather and
// checksum. What does not fit into the device's free memory is left out.
std::vector<Timing> TimeKernels();

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_CHECK_TIMING_H_
