// How a long subcommand is told to end, so that it can clean up first. All others die of the signal at once.
#ifndef KVMESH_CLIENT_CLI_END_SIGNAL_H_
#define KVMESH_CLIENT_CLI_END_SIGNAL_H_

#include "absl/time/time.h"

namespace kvmesh {

// Waits up to `timeout` for SIGINT, SIGTERM or SIGHUP and returns its number; 0: none came.
// REQUIRES: BlockSignals (kvstore/service/signals.h) was called before this process had threads.
int AwaitEndSignal(absl::Duration timeout);

}  // namespace kvmesh

#endif  // KVMESH_CLIENT_CLI_END_SIGNAL_H_
