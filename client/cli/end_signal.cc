#include "client/cli/end_signal.h"

#include <signal.h>

#include <algorithm>

namespace kvmesh {

int AwaitEndSignal(absl::Duration timeout) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, number);
  const timespec limit = absl::ToTimespec(timeout);
  return std::max(0, sigtimedwait(&signals, nullptr, &limit));
}

}  // namespace kvmesh
