// Every CUDA kernel against the reference, on the current device: what the tests and the checking program both run.
#ifndef KVMESH_KERNELS_CUDA_CHECK_CHECKS_H_
#define KVMESH_KERNELS_CUDA_CHECK_CHECKS_H_

#include <functional>
#include <string>

namespace kvmesh::cuda {

// Name of a check, with the seed and shape that it was drawn from, and what was wrong; empty: nothing.
using Report = std::function<void(const std::string& name, const std::string& fault)>;

// Paged attention and MLA within the tolerances of each format, and bit-identical for any batch.
void CheckAttention(const Report& report);
void CheckMla(const Report& report);
// Append, conversion, copies and checksums, bit by bit; merge and rope within 1e-5.
void CheckRows(const Report& report);
void CheckBlockBytes(const Report& report);
void CheckStates(const Report& report);

// All of the above.
void CheckAll(const Report& report);

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_CHECK_CHECKS_H_
