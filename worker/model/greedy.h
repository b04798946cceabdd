// Greedy sampling.
#ifndef KVMESH_WORKER_MODEL_GREEDY_H_
#define KVMESH_WORKER_MODEL_GREEDY_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvmesh {

// The id of the largest logit, the lowest one among equals. A NaN is never chosen, unless all are (then 0).
// REQUIRES: logits is not empty.
inline uint32_t GreedyToken(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    // The second test replaces a NaN that stands first.
    if (logits[i] > logits[best] || (logits[best] != logits[best] && logits[i] == logits[i])) best = i;
  }
  return static_cast<uint32_t>(best);
}

}  // namespace kvmesh

#endif  // KVMESH_WORKER_MODEL_GREEDY_H_
