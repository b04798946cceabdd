#include "kernels/streaming_attention.h"

#include <vector>

#include "kernels/check.h"
#include "kernels/merge_states.h"

namespace kvmesh {

void StreamingAttention(std::span<const float> query, std::span<const float> sink_query,
                        std::span<const AttentionSequence> sequences, int32_t layer, const AttentionParams& params,
                        const StreamingPolicy& policy, const KvPoolView& pool, std::span<float> out,
                        std::span<float> lse) {
  Require(policy.window > 0 && policy.sinks >= 0, "StreamingAttention: no window, or negative sinks");
  Require(sink_query.empty() || sink_query.size() == query.size(), "StreamingAttention: sink_query is not as query");
  AttentionParams window = params, sinks = params;
  window.window = policy.window;
  sinks.window = 0;
  sinks.sinks = {};  // in the window's state already
  const auto heads = static_cast<size_t>(params.q_heads), width = heads * static_cast<size_t>(pool.layout.head_dim);
  std::vector<float> own_lse(lse.empty() ? query.size() / static_cast<size_t>(pool.layout.head_dim) : 0);
  if (lse.empty()) lse = own_lse;
  PagedAttention(query, sequences, layer, window, pool, out, lse);

  std::vector<float> sink_out(width), sink_lse(heads);
  size_t row = 0;
  for (const AttentionSequence& sequence : sequences) {
    for (int64_t i = 0; i < sequence.queries; ++i, ++row) {
      const int64_t outside = SinksOutside(policy, sequence.first_position + i);
      if (outside == 0) continue;
      Require(!sink_query.empty(), "StreamingAttention: sinks outside a window, and no sink_query");
      const AttentionSequence piece = {sequence.block_table, outside - 1, 1};
      PagedAttention(sink_query.subspan(row * width, width), {&piece, 1}, layer, sinks, pool, sink_out, sink_lse);
      const std::span<float> row_out = out.subspan(row * width, width), row_lse = lse.subspan(row * heads, heads);
      MergeStates(AttentionState{row_out, row_lse}, AttentionState{sink_out, sink_lse}, pool.layout.head_dim, row_out,
                  row_lse);
    }
  }
}

}  // namespace kvmesh
