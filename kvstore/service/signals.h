// How a process is told to end or to reload: signals are waited for on one thread, never handled in a handler.
#ifndef KVMESH_KVSTORE_SERVICE_SIGNALS_H_
#define KVMESH_KVSTORE_SERVICE_SIGNALS_H_

#include <functional>

namespace kvmesh {

// Blocks SIGTERM, SIGINT and SIGHUP in this thread and in those that it starts later, and ignores SIGPIPE.
// REQUIRES: called first in main, before any thread exists; a thread that doesn't block them would die of them.
void BlockSignals();

// Waits for SIGTERM or SIGINT and returns its number. Runs `on_hangup` (may be null) on this thread for each SIGHUP.
// REQUIRES: BlockSignals was called.
int WaitForShutdown(const std::function<void()>& on_hangup);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_SERVICE_SIGNALS_H_
