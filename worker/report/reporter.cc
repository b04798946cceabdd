#include "worker/report/reporter.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kvstore/base/check.h"
#include "kvstore/service/log.h"
#include "worker/report/event_messages.h"
#include "worker/report/report_stream.h"

namespace kvmesh {
namespace {

using SteadyClock = std::chrono::steady_clock;

SteadyClock::time_point After(absl::Duration timeout) {
  return SteadyClock::now() + absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24)));
}

absl::Duration Until(SteadyClock::time_point end) { return absl::FromChrono(end - SteadyClock::now()); }

Reporter::Options Checked(Reporter::Options options) {
  KVMESH_CHECK(options.make_channel != nullptr && options.worker_info != nullptr, "a reporter lacks a callback");
  KVMESH_CHECK(options.store != nullptr, "a reporter without a block store");
  KVMESH_CHECK(options.handler != nullptr && options.executor != nullptr, "a reporter can't carry out orders");
  return options;
}

}  // namespace

Reporter::Reporter(Options options)
    : options_(Checked(std::move(options))),
      feed_(*options_.store, options_.feed),
      backoff_(options_.backoff, *options_.random),
      hook_(options_.store->events().OnAppend([this] { NoteWork(); })),
      desk_(*options_.handler, *options_.executor, options_.max_commands, [this] { NoteWork(); }) {
  thread_ = std::thread([this] { Run(); });
}

Reporter::~Reporter() { Stop(); }

void Reporter::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    if (stream_ != nullptr) stream_->Cancel();
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

uint64_t Reporter::registration() const {
  MutexLock lock(mu_);
  return counters_.registrations;
}

void Reporter::Reconnect(uint64_t registration) {
  MutexLock lock(mu_);
  if (registration != counters_.registrations || !counters_.registered) return;
  reconnecting_ = true;
  if (stream_ != nullptr) stream_->Cancel();
}

uint64_t Reporter::applied_sequence() const {
  MutexLock lock(mu_);
  return applied_;
}

bool Reporter::WaitApplied(uint64_t sequence, absl::Duration timeout) const {
  const SteadyClock::time_point end = After(timeout);
  MutexLock lock(mu_);
  while (applied_ < sequence) {
    if (stopping_ || SteadyClock::now() >= end) return false;
    changed_.WaitFor(lock, Until(end));
  }
  return true;
}

Reporter::Counters Reporter::counters() const {
  MutexLock lock(mu_);
  Counters counters = counters_;
  counters.commands = desk_.counters();
  return counters;
}

void Reporter::Run() {
  bool reported = false;  // a failure is logged once until the next registration
  MutexLock lock(mu_);
  while (!stopping_) {
    const uint64_t registrations = counters_.registrations;
    lock.Unlock();
    const grpc::Status status = RunStream();
    lock.Lock();
    if (stopping_) break;
    if (counters_.registrations != registrations) reported = false;
    if (std::exchange(reconnecting_, false)) continue;
    ++counters_.streams_failed;
    if (!std::exchange(reported, true)) {
      Log(LogLevel::kWarning, "worker", "report stream ended",
          {{"coordinator", options_.coordinator_address},
           {"code", static_cast<int>(status.error_code())},
           {"error", status.error_message()}});
    }
    const SteadyClock::time_point end = After(backoff_.Next());
    while (!stopping_ && SteadyClock::now() < end) changed_.WaitFor(lock, Until(end));
  }
}

grpc::Status Reporter::RunStream() {
  ReportStream stream(options_.make_channel(options_.coordinator_address));
  desk_.BeginStream();
  {
    MutexLock lock(mu_);
    if (stopping_) return grpc::Status::CANCELLED;
    stream_ = &stream;
    placed_ = resync_ = ended_ = false;
    applied_ = 0;
  }
  stream.Open([this, &stream](const v1::ReportResponse& response) { OnResponse(stream, response); },
              [this] {
                {
                  MutexLock lock(mu_);
                  ended_ = true;
                }
                changed_.NotifyAll();
              });
  if (Register(stream)) SendReports(stream);
  const grpc::Status status = stream.Close();
  MutexLock lock(mu_);
  stream_ = nullptr;
  counters_.registered = false;
  return status;
}

void Reporter::OnResponse(ReportStream& stream, const v1::ReportResponse& response) {
  using Kind = v1::ReportResponse;
  {
    MutexLock lock(mu_);
    switch (response.kind_case()) {
      case Kind::kRegistered:
        if (response.registered().protocol_version() == 0) {  // no version that both speak
          stream.Cancel();
          return;
        }
        counters_.registered = true;
        ++counters_.registrations;
        break;
      case Kind::kAppliedSequence:
        applied_ = response.applied_sequence();
        placed_ = true;
        break;
      case Kind::kResync:
        ++counters_.resyncs_asked;
        resync_ = true;
        placed_ = true;
        break;
      case Kind::kCommand:
      case Kind::KIND_NOT_SET:  // from a later version
        break;
    }
  }
  changed_.NotifyAll();
  if (response.has_command()) desk_.Submit(response.command());
}

bool Reporter::Register(ReportStream& stream) {
  v1::ReportRequest request;
  *request.mutable_register_() = options_.worker_info();
  if (!stream.Write(request)) return false;
  const SteadyClock::time_point end = After(options_.register_timeout);
  MutexLock lock(mu_);
  while (!over() && !(counters_.registered && placed_)) {
    if (SteadyClock::now() >= end) return false;
    changed_.WaitFor(lock, Until(end));
  }
  if (over()) return false;
  backoff_.Reset();
  fell_behind_ = false;
  feed_.Seek(applied_);
  Log(LogLevel::kInfo, "worker", "registered",
      {{"coordinator", options_.coordinator_address}, {"applied", applied_}, {"resync", resync_ ? 1 : 0}});
  return true;
}

void Reporter::SendReports(ReportStream& stream) {
  v1::ReportRequest request;
  while (true) {
    bool snapshot = fell_behind_;
    {
      MutexLock lock(mu_);
      if (over()) return;
      if (std::exchange(resync_, false)) snapshot = true;
    }
    if (!SendResults(stream)) return;
    if (!(snapshot ? SendSnapshot(stream) : SendBatch(stream, request))) return;
  }
}

bool Reporter::SendResults(ReportStream& stream) {
  v1::ReportRequest request;
  for (v1::CommandResult& result : desk_.TakeResults()) {
    *request.mutable_command_result() = std::move(result);
    if (!stream.Write(request)) return false;
  }
  return true;
}

bool Reporter::SendBatch(ReportStream& stream, v1::ReportRequest& request) {
  switch (feed_.Next(*request.mutable_events())) {
    case EventFeed::Outcome::kNothing:
      AwaitWork();
      return true;
    case EventFeed::Outcome::kFellBehind: {
      fell_behind_ = true;
      MutexLock lock(mu_);
      ++counters_.fell_behind;
      return true;
    }
    case EventFeed::Outcome::kEvents:
      break;
  }
  if (!stream.Write(request)) return false;
  MutexLock lock(mu_);
  counters_.events_sent += static_cast<uint64_t>(request.events().events_size());
  return true;
}

void Reporter::AwaitWork() {
  const SteadyClock::time_point end = After(feed_.UntilDigest());
  MutexLock lock(mu_);
  while (!over() && !resync_ && !work_ && SteadyClock::now() < end) changed_.WaitFor(lock, Until(end));
  work_ = false;
}

void Reporter::NoteWork() {
  {
    MutexLock lock(mu_);
    if (std::exchange(work_, true)) return;
  }
  changed_.NotifyAll();
}

bool Reporter::SendSnapshot(ReportStream& stream) {
  BlockStore::Cut cut = options_.store->TakeCut();
  feed_.Seek(cut.sequence);
  fell_behind_ = false;
  SnapshotPieces pieces(std::move(cut), options_.snapshot_piece_bytes);
  v1::ReportRequest request;
  while (pieces.Next(*request.mutable_snapshot())) {
    {
      MutexLock lock(mu_);
      if (over()) return false;
      if (resync_) return true;  // asked for anew: this one is of no use
    }
    if (!stream.Write(request)) return false;
  }
  MutexLock lock(mu_);
  ++counters_.snapshots_sent;
  return true;
}

}  // namespace kvmesh
