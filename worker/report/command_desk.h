// Runs a coordinator's orders beside its report stream and keeps their results until the stream takes them.
#ifndef KVMESH_WORKER_REPORT_COMMAND_DESK_H_
#define KVMESH_WORKER_REPORT_COMMAND_DESK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/base/executor.h"
#include "worker/report/command_handler.h"

namespace kvmesh {

// At most `max_commands` orders wait, run, or have a result that was not taken. One more is answered with
// RESOURCE_EXHAUSTED; when as many such answers wait too, it is dropped, and the coordinator's own deadline ends it.
// Thread safe.
class CommandDesk {
 public:
  // `handler` and `executor` outlive it. `on_result` is called without locks when there is a result to take.
  CommandDesk(CommandHandler& handler, Executor& executor, size_t max_commands, std::function<void()> on_result);
  // Drops orders that have not begun and waits for those that have.
  ~CommandDesk();

  // A new stream: results of earlier orders are dropped, nobody waits for them any more.
  void BeginStream();
  // Never waits for the order.
  void Submit(v1::Command command);
  // Results since the last call, in the order they came about.
  std::vector<v1::CommandResult> TakeResults();

  struct Counters {
    uint64_t submitted = 0;
    uint64_t refused = 0;  // by the limit, dropped ones included
    uint64_t open = 0;     // waiting, running or with a result to take
  };
  Counters counters() const;

 private:
  // Shared with the closures that are queued at the executor.
  struct State;
  static void Run(State& state, const v1::Command& command, uint64_t stream);

  const std::shared_ptr<State> state_;
  Executor& executor_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_REPORT_COMMAND_DESK_H_
