// Arrays in device memory, for the checks: they own what they hold and copy synchronously.
#ifndef KVMESH_KERNELS_CUDA_CHECK_ON_DEVICE_H_
#define KVMESH_KERNELS_CUDA_CHECK_ON_DEVICE_H_

#include <cuda_runtime_api.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/device_view.h"

namespace kvmesh::cuda {

// Ends the process, naming the error, unless `status` is success.
inline void Must(cudaError_t status) {
  Require(status == cudaSuccess, (std::string("CUDA: ") + cudaGetErrorString(status)).c_str());
}

template <class T>
class OnDevice {
 public:
  // Every byte 0xff: what is not written shows.
  explicit OnDevice(int64_t size) : size_(size) {
    Must(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<size_t>(bytes(), 1)));
    Must(cudaMemset(data_, 0xff, bytes()));
  }
  explicit OnDevice(std::span<const T> from) : OnDevice(static_cast<int64_t>(from.size())) { Upload(from, 0); }
  OnDevice(const OnDevice&) = delete;
  ~OnDevice() { static_cast<void>(cudaFree(data_)); }

  void Upload(std::span<const T> from, int64_t at) {
    Must(cudaMemcpy(data_ + at, from.data(), from.size_bytes(), cudaMemcpyHostToDevice));
  }
  // After all work of the device is done.
  std::vector<T> Download() const {
    std::vector<T> out(static_cast<size_t>(size_));
    Must(cudaDeviceSynchronize());
    Must(cudaMemcpy(out.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return out;
  }
  T* data() const { return data_; }
  size_t bytes() const { return static_cast<size_t>(size_) * sizeof(T); }
  DeviceView<T> view() const { return {data_, size_}; }
  DeviceView<const T> const_view() const { return {data_, size_}; }

 private:
  T* data_ = nullptr;
  int64_t size_;
};

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_CHECK_ON_DEVICE_H_
