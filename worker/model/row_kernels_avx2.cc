// RowKernels for AVX2 and FMA.
#define KVMESH_EIGEN_NAMESPACE EigenAvx2
#include "worker/model/row_kernels_impl.h"

namespace kvmesh {

extern const RowKernels kAvx2RowKernels;
const RowKernels kAvx2RowKernels = MakeRowKernels("avx2");

}  // namespace kvmesh
