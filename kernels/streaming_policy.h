// Bounded streaming (DESIGN section 5): attention sinks and a recent window, in constant memory. Source: StreamingLLM,
// arXiv:2309.17453.
#ifndef KVMESH_KERNELS_STREAMING_POLICY_H_
#define KVMESH_KERNELS_STREAMING_POLICY_H_

#include <cstdint>

namespace kvmesh {

// Position t attends to j when j < sinks or t - j < window. Keys stay rotated at their own position; a sink outside the
// window is met by the query rotated at min(t, sinks + window - 1). window 0: no such policy, attention is full.
struct StreamingPolicy {
  int64_t sinks = 0;
  int64_t window = 0;

  bool streams() const { return window != 0; }
  friend bool operator==(const StreamingPolicy&, const StreamingPolicy&) = default;
};

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_STREAMING_POLICY_H_
