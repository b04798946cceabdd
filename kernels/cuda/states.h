// CUDA: merge_states and apply_rope. Same contracts as kernels/merge_states.h and kernels/rope.h; asynchronous as
// kernels/cuda/append.h says; cudaErrorInvalidValue as there.
#ifndef KVMESH_KERNELS_CUDA_STATES_H_
#define KVMESH_KERNELS_CUDA_STATES_H_

#include <cuda_runtime_api.h>

#include "kernels/cuda/device_view.h"
#include "kernels/rope.h"

namespace kvmesh::cuda {

struct DeviceState;

// states: an array in device memory. out: [rows, head_dim]; lse: empty, or [rows]. Weights are computed in double, the
// sum in fp32 in the order of the states: a row depends on nothing else. Near the CPU's, not its bits. `out` and `lse`
// may be those of a state.
cudaError_t MergeStates(DeviceView<const DeviceState> states, int32_t head_dim, DeviceView<float> out,
                        DeviceView<float> lse, cudaStream_t stream);

// Rotates x, [tokens, heads, head_dim], in place. frequencies: empty, or [rotary_dim / 2] for scaling rules. Angles in
// double; cosines and sines are those of the device's library, which may be an ulp of fp32 from the CPU's.
cudaError_t ApplyRope(DeviceView<float> x, DeviceView<const int64_t> positions, int32_t heads, int32_t head_dim,
                      const RopeParams& params, DeviceView<const double> frequencies, cudaStream_t stream);

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_STATES_H_
