#include "kernels/merge_states.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/check.h"
#include "kernels/reference/reference.h"
#include "kernels/variant.h"

namespace kvmesh {
namespace {

constexpr double kEmpty = -std::numeric_limits<double>::infinity();
// Elements of a row that are merged at a time.
constexpr int32_t kChunk = 16;

// A state's part in one row.
struct Part {
  const float* out;
  double weight;
};

// The parts of `row` that are not empty, with weights that add up to 1. Returns the row's lse.
double WeighRow(std::span<const AttentionState> states, size_t row, int32_t head_dim, std::vector<Part>& parts) {
  double highest = kEmpty;
  for (const AttentionState& s : states) highest = std::max(highest, double{s.lse[row]});
  double sum = 0;
  parts.clear();
  for (const AttentionState& s : states) {
    if (s.lse[row] == kEmpty) continue;
    parts.push_back({s.out.data() + row * head_dim, std::exp(s.lse[row] - highest)});
    sum += parts.back().weight;
  }
  for (Part& part : parts) part.weight /= sum;
  return parts.empty() ? kEmpty : highest + std::log(sum);
}

// Elements [begin, begin + count) of a row. Through `sum`, since `out` may be what one of the parts points at; a
// constant count keeps it in registers.
inline void AddChunk(std::span<const Part> parts, int32_t begin, int32_t count, float* out) {
  float sum[kChunk];
  const float* first = parts[0].out + begin;
  const float first_weight = static_cast<float>(parts[0].weight);
  for (int32_t d = 0; d < count; ++d) sum[d] = first_weight * first[d];
  for (const Part& part : parts.subspan(1)) {
    const float* next = part.out + begin;
    const float weight = static_cast<float>(part.weight);
    for (int32_t d = 0; d < count; ++d) sum[d] += weight * next[d];
  }
  for (int32_t d = 0; d < count; ++d) out[begin + d] = sum[d];
}

void AddParts(std::span<const Part> parts, int32_t head_dim, float* out) {
  int32_t begin = 0;
  for (; begin + kChunk <= head_dim; begin += kChunk) AddChunk(parts, begin, kChunk, out);
  if (begin < head_dim) AddChunk(parts, begin, head_dim - begin, out);
}

}  // namespace

void MergeStates(std::span<const AttentionState> states, int32_t head_dim, std::span<float> out, std::span<float> lse) {
  Require(head_dim > 0 && out.size() % head_dim == 0, "MergeStates: out is not [tokens, q_heads, head_dim]");
  const size_t rows = out.size() / head_dim;
  Require(lse.empty() || lse.size() == rows, "MergeStates: lse is not [tokens, q_heads]");
  for (const AttentionState& s : states) {
    Require(s.out.size() == out.size() && s.lse.size() == rows, "MergeStates: a state has another shape");
  }
  if (CurrentVariant() == KernelVariant::kReference) return reference::MergeStates(states, head_dim, out, lse);
  std::vector<Part> parts;
  for (size_t row = 0; row < rows; ++row) {
    const double row_lse = WeighRow(states, row, head_dim, parts);
    float* to = out.data() + row * head_dim;
    if (parts.empty()) {
      std::fill_n(to, head_dim, 0.0f);
    } else {
      AddParts(parts, head_dim, to);
    }
    if (!lse.empty()) lse[row] = static_cast<float>(row_lse);
  }
}

void MergeStates(const AttentionState& a, const AttentionState& b, int32_t head_dim, std::span<float> out,
                 std::span<float> lse) {
  const AttentionState states[] = {a, b};
  MergeStates(states, head_dim, out, lse);
}

}  // namespace kvmesh
