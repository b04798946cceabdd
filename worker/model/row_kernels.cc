#include "worker/model/row_kernels.h"

#include <algorithm>

namespace kvmesh {

extern const RowKernels kBaselineRowKernels;
#ifdef KVMESH_ROW_KERNELS_X86
extern const RowKernels kAvx2RowKernels;
extern const RowKernels kAvx512RowKernels;
#endif

namespace {

std::vector<const RowKernels*> FindUsable() {
  std::vector<const RowKernels*> out;
#ifdef KVMESH_ROW_KERNELS_X86
  // What the files are compiled for; see CMakeLists.txt.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
  if (avx512) out.push_back(&kAvx512RowKernels);
  if (avx2) out.push_back(&kAvx2RowKernels);
#endif
  out.push_back(&kBaselineRowKernels);
  return out;
}

}  // namespace

std::span<const RowKernels* const> UsableRowKernels() {
  static const std::vector<const RowKernels*>& usable = *new std::vector<const RowKernels*>(FindUsable());
  return usable;
}

const RowKernels& BestRowKernels() { return *UsableRowKernels().front(); }

PackedMatrix PackMatrix(const RowKernels& kernels, std::span<const float> weight, int64_t columns, int64_t depth) {
  PackedMatrix out;
  out.columns = columns;
  out.depth = depth;
  const int64_t panel = kernels.panel;
  const int64_t panels = (columns + panel - 1) / panel;
  out.panels.resize(static_cast<size_t>(panels * depth * panel));
  for (int64_t n = 0; n < columns; ++n) {
    float* to = out.panels.data() + n / panel * depth * panel + n % panel;
    const float* from = weight.data() + n * depth;
    for (int64_t k = 0; k < depth; ++k) to[k * panel] = from[k];
  }
  return out;
}

}  // namespace kvmesh
