#include "worker/report/command_desk.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/base/mutex.h"
#include "kvstore/service/grpc_status.h"

namespace kvmesh {
namespace {

absl::StatusOr<uint64_t> CarryOut(CommandHandler& handler, const v1::Command& command) {
  switch (command.kind_case()) {
    case v1::Command::kPin:
      return handler.Pin(command.pin());
    case v1::Command::kUnpin:
      return handler.Unpin(command.unpin());
    case v1::Command::kPrefetch:
      return handler.Prefetch(command.prefetch());
    case v1::Command::kClearIdentity:
      return handler.ClearIdentity(command.clear_identity());
    case v1::Command::kDrain:
      return handler.Drain(command.drain());
    case v1::Command::KIND_NOT_SET:
      break;
  }
  return absl::UnimplementedError("command: of a kind that this worker does not know");
}

v1::CommandResult MakeResult(uint64_t id, const absl::StatusOr<uint64_t>& outcome) {
  const grpc::Status status = ToGrpcStatus(outcome.status());
  v1::CommandResult result;
  result.set_id(id);
  result.set_code(status.error_code());
  result.set_message(status.error_message());
  if (outcome.ok()) result.set_blocks(*outcome);
  return result;
}

}  // namespace

struct CommandDesk::State {
  CommandHandler& handler;
  const size_t max_commands;
  const std::function<void()> on_result;

  Mutex mu;
  CondVar idle;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  uint64_t stream ABSL_GUARDED_BY(mu) = 0;
  size_t unfinished ABSL_GUARDED_BY(mu) = 0;  // waiting or running, of any stream
  size_t running ABSL_GUARDED_BY(mu) = 0;
  size_t refusals ABSL_GUARDED_BY(mu) = 0;  // among the results
  std::vector<v1::CommandResult> results ABSL_GUARDED_BY(mu);
  Counters counters ABSL_GUARDED_BY(mu);

  size_t open() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return unfinished + results.size() - refusals; }
};

CommandDesk::CommandDesk(CommandHandler& handler, Executor& executor, size_t max_commands,
                         std::function<void()> on_result)
    : state_(new State{.handler = handler, .max_commands = max_commands, .on_result = std::move(on_result)}),
      executor_(executor) {}

CommandDesk::~CommandDesk() {
  MutexLock lock(state_->mu);
  state_->stopping = true;
  while (state_->running > 0) state_->idle.Wait(lock);
}

void CommandDesk::BeginStream() {
  MutexLock lock(state_->mu);
  ++state_->stream;
  state_->results.clear();
  state_->refusals = 0;
}

void CommandDesk::Submit(v1::Command command) {
  State& state = *state_;
  MutexLock lock(state.mu);
  ++state.counters.submitted;
  if (state.open() >= state.max_commands) {
    ++state.counters.refused;
    if (state.refusals >= state.max_commands) return;
    ++state.refusals;
    state.results.push_back(MakeResult(
        command.id(),
        absl::ResourceExhaustedError(absl::StrCat("commands: the limit of ", state.max_commands, " is reached"))));
    lock.Unlock();
    state.on_result();
    return;
  }
  ++state.unfinished;
  const uint64_t stream = state.stream;
  lock.Unlock();
  executor_.Schedule([shared = state_, command = std::move(command), stream] { Run(*shared, command, stream); });
}

void CommandDesk::Run(State& state, const v1::Command& command, uint64_t stream) {
  {
    MutexLock lock(state.mu);
    if (state.stopping || state.stream != stream) {
      --state.unfinished;
      return;
    }
    ++state.running;
  }
  v1::CommandResult result = MakeResult(command.id(), CarryOut(state.handler, command));
  bool wanted;
  {
    MutexLock lock(state.mu);
    --state.unfinished;
    wanted = state.stream == stream && !state.stopping;
    if (wanted) state.results.push_back(std::move(result));
  }
  if (wanted) state.on_result();
  MutexLock lock(state.mu);
  if (--state.running == 0) state.idle.NotifyAll();
}

std::vector<v1::CommandResult> CommandDesk::TakeResults() {
  MutexLock lock(state_->mu);
  state_->refusals = 0;
  return std::exchange(state_->results, {});
}

CommandDesk::Counters CommandDesk::counters() const {
  MutexLock lock(state_->mu);
  Counters counters = state_->counters;
  counters.open = state_->open();
  return counters;
}

}  // namespace kvmesh
