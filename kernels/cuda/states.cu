#include "kernels/cuda/launch.h"
#include "kernels/cuda/states.h"
#include "kernels/cuda/states_body.h"

namespace kvmesh::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) MergeKernel(MergeArgs args) {
  Device m;
  MergeBody(m, args);
}

__global__ void __launch_bounds__(kThreads) RopeKernel(RopeArgs args) {
  Device m;
  RopeBody(m, args);
}

}  // namespace

cudaError_t MergeStates(DeviceView<const DeviceState> states, int32_t head_dim, DeviceView<float> out,
                        DeviceView<float> lse, cudaStream_t stream) {
  if (head_dim <= 0 || out.size % head_dim != 0) return cudaErrorInvalidValue;
  const int64_t rows = out.size / head_dim;
  if (!lse.empty() && lse.size != rows) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  MergeKernel<<<BlocksFor(rows, 1), 128, 0, stream>>>(
      {states.data, states.size, rows, head_dim, out.data, lse.empty() ? nullptr : lse.data});
  return cudaGetLastError();
}

cudaError_t ApplyRope(DeviceView<float> x, DeviceView<const int64_t> positions, int32_t heads, int32_t head_dim,
                      const RopeParams& params, DeviceView<const double> frequencies, cudaStream_t stream) {
  if (heads <= 0 || params.rotary_dim <= 0 || params.rotary_dim % 2 != 0 || params.rotary_dim > head_dim ||
      !(params.theta > 0) || x.size != positions.size * heads * head_dim ||
      (!frequencies.empty() && frequencies.size != params.rotary_dim / 2)) {
    return cudaErrorInvalidValue;
  }
  if (positions.empty()) return cudaSuccess;
  RopeKernel<<<BlocksFor(positions.size * (params.rotary_dim / 2)), kThreads, 0, stream>>>(
      {x.data, positions.data, frequencies.empty() ? nullptr : frequencies.data, positions.size, heads, head_dim,
       params});
  return cudaGetLastError();
}

}  // namespace kvmesh::cuda
