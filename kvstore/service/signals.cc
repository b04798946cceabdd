#include "kvstore/service/signals.h"

#include <pthread.h>
#include <signal.h>

namespace kvmesh {
namespace {

sigset_t WaitedSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
  return set;
}

}  // namespace

void BlockSignals() {
  signal(SIGPIPE, SIG_IGN);
  const sigset_t set = WaitedSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

int WaitForShutdown(const std::function<void()>& on_hangup) {
  const sigset_t set = WaitedSignals();
  while (true) {
    int number = 0;
    if (sigwait(&set, &number) != 0) continue;
    if (number != SIGHUP) return number;
    if (on_hangup) on_hangup();
  }
}

}  // namespace kvmesh
