// Attention under bounded streaming: a recent window, and the attention sinks outside it.
#ifndef KVMESH_KERNELS_STREAMING_ATTENTION_H_
#define KVMESH_KERNELS_STREAMING_ATTENTION_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/paged_attention.h"
#include "kernels/streaming_policy.h"

namespace kvmesh {

// Where the query at `position` stands for the sinks outside its window.
constexpr int64_t SinkQueryPosition(const StreamingPolicy& policy, int64_t position) {
  return std::min(position, policy.sinks + policy.window - 1);
}

// Sinks outside the window of the query at `position`.
constexpr int64_t SinksOutside(const StreamingPolicy& policy, int64_t position) {
  return std::clamp<int64_t>(position - policy.window + 1, 0, policy.sinks);
}

// PagedAttention under `policy`, whose window replaces that of `params`. query: rotated at its own position.
// sink_query: the same queries rotated at SinkQueryPosition; rows without sinks outside their window are not read, so
// it may be empty when there are none. Learned sinks of `params` count once. Blocks that neither the sinks nor a window
// reach need not be there. Row-invariant, as PagedAttention is.
// REQUIRES: as PagedAttention; policy.streams(). Thread safe.
void StreamingAttention(std::span<const float> query, std::span<const float> sink_query,
                        std::span<const AttentionSequence> sequences, int32_t layer, const AttentionParams& params,
                        const StreamingPolicy& policy, const KvPoolView& pool, std::span<float> out,
                        std::span<float> lse = {});

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_STREAMING_ATTENTION_H_
