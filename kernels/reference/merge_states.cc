#include "kernels/merge_states.h"

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/reference.h"

namespace kvmesh::reference {

void MergeStates(std::span<const AttentionState> states, int32_t head_dim, std::span<float> out, std::span<float> lse) {
  constexpr double kEmpty = -std::numeric_limits<double>::infinity();
  const size_t rows = out.size() / head_dim;
  for (size_t row = 0; row < rows; ++row) {
    double highest = kEmpty;
    for (const AttentionState& s : states) highest = std::fmax(highest, s.lse[row]);
    double sum = 0;
    std::vector<double> acc(head_dim, -0.0);  // the zero that keeps what is added to it, bit for bit
    for (const AttentionState& s : states) {
      if (s.lse[row] == kEmpty) continue;
      const double weight = std::exp(s.lse[row] - highest);
      sum += weight;
      for (int32_t d = 0; d < head_dim; ++d) acc[d] += weight * s.out[row * head_dim + d];
    }
    const bool empty = sum == 0;
    for (int32_t d = 0; d < head_dim; ++d) out[row * head_dim + d] = empty ? 0.0f : static_cast<float>(acc[d] / sum);
    if (!lse.empty()) lse[row] = static_cast<float>(empty ? kEmpty : highest + std::log(sum));
  }
}

}  // namespace kvmesh::reference
