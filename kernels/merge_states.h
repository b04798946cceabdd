// Merging attention over disjoint sets of keys into attention over their union.
#ifndef KVMESH_KERNELS_MERGE_STATES_H_
#define KVMESH_KERNELS_MERGE_STATES_H_

#include <cstdint>
#include <span>

namespace kvmesh {

// Attention of some queries over one set of keys, as PagedAttention and MlaPagedDecode give it. A row whose set is
// empty has lse -inf and counts for nothing, whatever stands in `out`.
struct AttentionState {
  std::span<const float> out;  // fp32 [tokens, q_heads, head_dim], normalized over its own keys
  std::span<const float> lse;  // fp32 [tokens, q_heads]: natural log of the sum of exp of the scaled scores
};

// out and lse of the union of the keys, row by row, for any number of states (none gives (0, -inf)):
//   lse = ln(sum of exp(lse_i)),   out = sum of exp(lse_i - lse) * out_i
// Merging is associative and commutative up to rounding, and (0, -inf) is its identity bit for bit. A NaN in an lse
// makes its row NaN. Weights and lse are computed in double, the weighted sum in fp32, in the order of the states.
// `lse` may be empty when it is not wanted. `out` and `lse` may be those of one of the states: they are then replaced.
// Source: the merge operator of FlashInfer (docs.flashinfer.ai, "Attention States and Recursive Attention", in natural
// logs here); the split of keys is that of Flash-Decoding (Dao et al., 2023).
// REQUIRES: sizes agree; head_dim positive. Thread safe.
void MergeStates(std::span<const AttentionState> states, int32_t head_dim, std::span<float> out, std::span<float> lse);

// The same of two states.
void MergeStates(const AttentionState& a, const AttentionState& b, int32_t head_dim, std::span<float> out,
                 std::span<float> lse);

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_MERGE_STATES_H_
