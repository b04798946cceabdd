// RowKernels for AVX-512 (F, DQ).
#define KVMESH_EIGEN_NAMESPACE EigenAvx512
#include "worker/model/row_kernels_impl.h"

namespace kvmesh {

extern const RowKernels kAvx512RowKernels;
const RowKernels kAvx512RowKernels = MakeRowKernels("avx512");

}  // namespace kvmesh
