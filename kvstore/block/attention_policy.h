// The text of an identity's attention policy.
#ifndef KVMESH_KVSTORE_BLOCK_ATTENTION_POLICY_H_
#define KVMESH_KVSTORE_BLOCK_ATTENTION_POLICY_H_

#include "absl/strings/string_view.h"
#include "kernels/streaming_policy.h"
#include "kvstore/base/status.h"

namespace kvmesh {

inline constexpr absl::string_view kFullAttention = "full";

// "" and "full" are the policy without a window. INVALID_ARGUMENT naming attention_policy: neither of these nor
// `sinks=S,window=W` in decimal without leading zeros, both below 2^32, W at least 1.
absl::StatusOr<StreamingPolicy> ParseAttentionPolicy(absl::string_view text);

// The text that parses back to `policy`; "" without a window.
std::string AttentionPolicyText(const StreamingPolicy& policy);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BLOCK_ATTENTION_POLICY_H_
