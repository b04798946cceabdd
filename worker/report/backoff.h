// Pauses between attempts: doubling, bounded, with jitter so that a fleet does not come back in step.
#ifndef KVMESH_WORKER_REPORT_BACKOFF_H_
#define KVMESH_WORKER_REPORT_BACKOFF_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "kvstore/base/random.h"

namespace kvmesh {

struct BackoffOptions {
  absl::Duration min = absl::Milliseconds(100);
  absl::Duration max = absl::Seconds(1);
};

// Not thread safe.
class Backoff {
 public:
  // `random` outlives it.
  Backoff(const BackoffOptions& options, RandomSource& random) : options_(options), random_(random) { Reset(); }

  // How long to pause before the next attempt: between half of the current step and all of it.
  absl::Duration Next() {
    const absl::Duration step = step_;
    step_ = std::min(step_ * 2, options_.max);
    uint32_t word;
    random_.Fill(&word, sizeof(word));
    return step / 2 + step / 2 * (word / 4294967296.0);
  }
  // An attempt succeeded: the next pause is the shortest.
  void Reset() { step_ = options_.min; }

 private:
  const BackoffOptions options_;
  RandomSource& random_;
  absl::Duration step_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_REPORT_BACKOFF_H_
