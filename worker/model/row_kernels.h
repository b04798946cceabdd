// The dense arithmetic of a forward pass, row by row: products with weight matrices, RMS norm, gated activation.
//
// Row-invariant by construction: every output element comes from one fixed sequence of operations that depends on its
// own row only. An element of a product is one chain over ascending k, acc = acc + x[k] * w[n][k] from acc = 0, so the
// number of rows in a call, a row's place among them, and the tile that computes it can't change a bit, and no row has
// to be padded. (Eigen's own product picks another summation order for 1 row than for 16; its packet types are used
// here, its product isn't.)
//
// There is one set of functions per instruction set, chosen once by what the CPU has. Sets with fused multiply-add give
// the same bits as each other; the baseline, without it, doesn't.
#ifndef KVMESH_WORKER_MODEL_ROW_KERNELS_H_
#define KVMESH_WORKER_MODEL_ROW_KERNELS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace kvmesh {

// A [columns, depth] weight matrix repacked for one RowKernels: panels of `panel` columns, each [depth][panel], the
// last one padded with zeros.
struct PackedMatrix {
  int64_t columns = 0;
  int64_t depth = 0;
  std::vector<float> panels;
};

// Rows are fp32 and dense unless a stride (in floats) is given. All functions are thread safe.
struct RowKernels {
  const char* name;
  int32_t panel;
  bool fused;  // multiply-adds round once

  // out[r][n] = sum over k of x[r][k] * weight[n][k], plus the old out[r][n] when `accumulate` (one addition at the
  // end). x: [rows, depth], out: [rows, columns]. REQUIRES: `weight` was packed for this set; out does not overlap x.
  void (*multiply)(const PackedMatrix& weight, const float* x, int64_t rows, float* out, bool accumulate);

  // out[r][i] = x[r][i] / sqrt(mean of x[r]^2 + eps) * weight[i]. x, out: [rows, width], may be the same.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t rows, int64_t width, float* out);

  // gate[i] = silu(gate[i]) * up[i], silu(g) = g / (1 + exp(-g)).
  void (*silu_multiply)(float* gate, const float* up, int64_t count);
};

// The set that this process uses: the fastest one that the CPU runs. Chosen once; thread safe.
const RowKernels& BestRowKernels();

// All sets of this build that the CPU runs, fastest first.
std::span<const RowKernels* const> UsableRowKernels();

// Repacks a row-major [columns, depth] matrix. REQUIRES: weight.size() == columns * depth.
PackedMatrix PackMatrix(const RowKernels& kernels, std::span<const float> weight, int64_t columns, int64_t depth);

}  // namespace kvmesh

#endif  // KVMESH_WORKER_MODEL_ROW_KERNELS_H_
