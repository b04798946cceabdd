// Waiting for a condition that can only be asked again and again, as those in another process.
#ifndef KVMESH_TESTS_SUPPORT_AWAIT_H_
#define KVMESH_TESTS_SUPPORT_AWAIT_H_

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace kvmesh {

// True as soon as `condition` holds; false when `patience` ended first. Asks at least once.
inline bool Await(absl::Duration patience, const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + patience;
  while (!condition()) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SUPPORT_AWAIT_H_
