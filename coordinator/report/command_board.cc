#include "coordinator/report/command_board.h"

#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

// How often a waiting call looks whether its caller has gone.
constexpr absl::Duration kCancelPoll = absl::Milliseconds(50);

// The results of one SendAll; outlives a caller that stopped waiting.
struct Gathering {
  Mutex mu;
  CondVar changed;
  std::vector<CommandOutcome> outcomes ABSL_GUARDED_BY(mu);
  size_t missing ABSL_GUARDED_BY(mu) = 0;
};

}  // namespace

void CommandBoard::Attach(const std::string& worker_id, uint64_t session, Sink sink) {
  std::vector<Pending> ended;
  {
    MutexLock lock(mu_);
    Stream& stream = streams_[worker_id];
    if (stream.session > session) return;
    if (stream.session != session) ended = TakeAllOf(worker_id);
    stream.session = session;
    stream.sink = std::make_shared<Sink>(std::move(sink));
  }
  for (const Pending& pending : ended) pending.done({absl::UnavailableError("the worker's stream was replaced")});
}

void CommandBoard::Detach(const std::string& worker_id, uint64_t session) {
  std::vector<Pending> ended;
  {
    MutexLock lock(mu_);
    const auto it = streams_.find(worker_id);
    if (it == streams_.end() || it->second.session != session) return;
    ended = TakeAllOf(worker_id);
    streams_.erase(worker_id);
  }
  for (const Pending& pending : ended) pending.done({absl::UnavailableError("the worker's stream ended")});
}

void CommandBoard::Send(const std::string& worker_id, v1::Command command, absl::Duration timeout, Done done) {
  absl::Status refused;
  std::shared_ptr<Sink> sink;
  uint64_t id = 0;
  {
    MutexLock lock(mu_);
    const auto it = streams_.find(worker_id);
    if (it == streams_.end()) {
      refused = absl::UnavailableError(absl::StrCat("worker ", worker_id, " has no report stream"));
    } else if (it->second.pending >= kMaxPendingPerWorker) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat("worker ", worker_id, ": more than ", kMaxPendingPerWorker, " commands wait"));
    } else {
      id = next_id_++;
      sink = it->second.sink;
      ++it->second.pending;
      pending_[id] = {worker_id, clock_.Now() + timeout, done};
    }
  }
  if (sink != nullptr) {
    command.set_id(id);
    v1::ReportResponse response;
    *response.mutable_command() = std::move(command);
    if ((*sink)(std::move(response))) {
      metrics_.commands_sent.Increment();
      return;
    }
    refused = absl::UnavailableError(absl::StrCat("worker ", worker_id, ": its stream has ended"));
    MutexLock lock(mu_);
    Pending pending;
    if (!Take(id, worker_id, pending)) return;  // ended meanwhile
  }
  metrics_.commands_refused.Increment();
  done({refused});
}

std::vector<CommandOutcome> CommandBoard::SendAll(std::vector<std::pair<std::string, v1::Command>> commands,
                                                  absl::Duration timeout, const std::function<bool()>& cancelled) {
  const auto gathering = std::make_shared<Gathering>();
  {
    MutexLock lock(gathering->mu);
    gathering->missing = commands.size();
    gathering->outcomes.resize(commands.size(), {absl::CancelledError("the caller has gone")});
  }
  for (size_t i = 0; i < commands.size(); ++i) {
    Send(commands[i].first, std::move(commands[i].second), timeout, [gathering, i](const CommandOutcome& outcome) {
      MutexLock lock(gathering->mu);
      gathering->outcomes[i] = outcome;
      --gathering->missing;
      gathering->changed.NotifyAll();
    });
  }
  MutexLock lock(gathering->mu);
  while (gathering->missing > 0) {
    lock.Unlock();
    const bool gone = cancelled();
    lock.Lock();
    if (gone || gathering->missing == 0) break;
    gathering->changed.WaitFor(lock, kCancelPoll);
  }
  return gathering->outcomes;
}

void CommandBoard::Resolve(absl::string_view worker_id, const v1::CommandResult& result) {
  Pending pending;
  {
    MutexLock lock(mu_);
    if (!Take(result.id(), worker_id, pending)) {
      metrics_.results_unmatched.Increment();
      return;
    }
  }
  const bool known = result.code() >= 0 && result.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  const auto code = known ? static_cast<absl::StatusCode>(result.code()) : absl::StatusCode::kUnknown;
  pending.done({absl::Status(code, result.message()), result.blocks()});
}

void CommandBoard::Expire() {
  std::vector<Pending> ended;
  {
    MutexLock lock(mu_);
    const absl::Time now = clock_.Now();
    std::vector<uint64_t> ids;
    for (const auto& [id, pending] : pending_) {
      if (pending.deadline <= now) ids.push_back(id);
    }
    for (const uint64_t id : ids) {
      Pending pending;
      if (Take(id, pending_[id].worker_id, pending)) ended.push_back(std::move(pending));
    }
  }
  for (const Pending& pending : ended) {
    metrics_.commands_timed_out.Increment();
    pending.done({absl::DeadlineExceededError(absl::StrCat("worker ", pending.worker_id, " did not answer in time"))});
  }
}

uint64_t CommandBoard::NewSession() {
  MutexLock lock(mu_);
  return next_session_++;
}

bool CommandBoard::Take(uint64_t id, absl::string_view worker_id, Pending& out) {
  const auto it = pending_.find(id);
  if (it == pending_.end() || it->second.worker_id != worker_id) return false;
  out = std::move(it->second);
  pending_.erase(it);
  const auto stream = streams_.find(out.worker_id);
  if (stream != streams_.end() && stream->second.pending > 0) --stream->second.pending;
  return true;
}

std::vector<CommandBoard::Pending> CommandBoard::TakeAllOf(absl::string_view worker_id) {
  std::vector<uint64_t> ids;
  for (const auto& [id, pending] : pending_) {
    if (pending.worker_id == worker_id) ids.push_back(id);
  }
  std::vector<Pending> out;
  for (const uint64_t id : ids) {
    Pending pending;
    if (Take(id, worker_id, pending)) out.push_back(std::move(pending));
  }
  return out;
}

}  // namespace kvmesh
