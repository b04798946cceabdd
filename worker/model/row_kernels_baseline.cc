// RowKernels for any CPU of the architecture.
#define KVMESH_EIGEN_NAMESPACE EigenBaseline
#include "worker/model/row_kernels_impl.h"

namespace kvmesh {

extern const RowKernels kBaselineRowKernels;
const RowKernels kBaselineRowKernels = MakeRowKernels("baseline");

}  // namespace kvmesh
