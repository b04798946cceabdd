#include "worker/transport/grpc/fetch_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/base/check.h"
#include "worker/transport/serve/fetch_request.h"

namespace kvmesh {
namespace {

constexpr char kMethod[] = "/kvmesh.v1.Worker/FetchBlocks";

}  // namespace

absl::Status FetchResult(const grpc::Status& status, bool complete) {
  if (status.ok()) return complete ? absl::OkStatus() : absl::DataLossError("the stream ended before the last block");
  return FetchFailure(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

FetchCall::FetchCall(const TransferRequest& request, v1::FetchBlocksRequest message, ChannelCache& channels)
    : address_(request.peer_address),
      message_(std::move(message)),
      channels_(channels),
      assembler_(request.layout, request.targets) {
  context_.set_deadline(absl::ToChronoTime(request.deadline));
  context_.set_initial_metadata_corked(true);  // goes out with the request
}

void FetchCall::Start() {
  {
    MutexLock lock(mu_);
    KVMESH_CHECK(stage_ == Stage::kPrepared || finished_, "a transfer is posted twice");
    if (finished_) return;
    stage_ = Stage::kRunning;
    peer_ = channels_.Get(address_);
    last_heard_ = Clock::now().time_since_epoch().count();
  }
  // A Fail from here on cancels the context, which holds for a call that is made later.
  peer_->stub.PrepareBidiStreamingCall(&context_, kMethod, {}, this);
  StartWriteLast(&message_, grpc::WriteOptions());
  StartRead(&piece_);
  StartCall();
}

void FetchCall::Fail(absl::Status result) {
  {
    MutexLock lock(mu_);
    if (finished_) return;
    finished_ = true;
    result_ = std::move(result);
    if (stage_ == Stage::kPrepared) stage_ = Stage::kQuiescent;
  }
  changed_.NotifyAll();
  context_.TryCancel();
}

void FetchCall::OnReadDone(bool ok) {
  if (!ok) return;  // OnDone follows
  any_piece_ = true;
  last_heard_ = Clock::now().time_since_epoch().count();
  {
    MutexLock lock(mu_);
    if (finished_) return;
  }
  absl::StatusOr<std::optional<BlockHeader>> completed = assembler_.Take(piece_);
  if (!completed.ok()) return Fail(completed.status());
  if (completed->has_value()) {
    MutexLock lock(mu_);
    if (finished_) return;
    arrived_.push_back(**completed);
    changed_.NotifyAll();
  }
  piece_.Clear();
  StartRead(&piece_);
}

void FetchCall::OnDone(const grpc::Status& status) {
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) channels_.Forget(address_, peer_);
  MutexLock lock(mu_);
  if (!finished_) {
    finished_ = true;
    result_ = FetchResult(status, assembler_.complete());
  }
  stage_ = Stage::kQuiescent;
  changed_.NotifyAll();  // under the lock: the owner may destroy this as soon as it is released
}

TransferProgress FetchCall::ProgressLocked(size_t seen) const {
  TransferProgress progress;
  progress.arrived.assign(arrived_.begin() + static_cast<ptrdiff_t>(std::min(seen, arrived_.size())), arrived_.end());
  progress.finished = finished_;
  if (finished_) progress.result = result_;
  progress.quiescent = stage_ == Stage::kQuiescent;
  return progress;
}

TransferProgress FetchCall::Progress(size_t seen) {
  MutexLock lock(mu_);
  return ProgressLocked(seen);
}

TransferProgress FetchCall::WaitForProgress(size_t seen, absl::Duration timeout) {
  const Clock::time_point end = Clock::now() + absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24)));
  MutexLock lock(mu_);
  const bool was_finished = finished_;
  while (arrived_.size() <= seen && finished_ == was_finished && stage_ != Stage::kQuiescent) {
    const Clock::time_point now = Clock::now();
    if (now >= end) break;
    changed_.WaitFor(lock, absl::FromChrono(end - now));
  }
  return ProgressLocked(seen);
}

FetchCall::Clock::time_point FetchCall::CheckSilence(Clock::time_point now, const FetchTimeouts& timeouts) {
  {
    MutexLock lock(mu_);
    if (finished_ || stage_ != Stage::kRunning) return Clock::time_point::max();
  }
  const Clock::time_point heard{Clock::duration(last_heard_.load())};
  const Clock::time_point stalled = heard + absl::ToChronoNanoseconds(timeouts.stall);
  const Clock::time_point unreachable = heard + absl::ToChronoNanoseconds(timeouts.connect);
  const bool connected = any_piece_ || peer_->channel->GetState(false) == GRPC_CHANNEL_READY;
  const Clock::time_point due = connected ? stalled : std::min(stalled, unreachable);
  if (now < due) return due;
  channels_.Forget(address_, peer_);
  Fail(absl::UnavailableError(absl::StrCat("peer ", address_,
                                           connected ? " sent nothing for " : " is not connected after ",
                                           absl::FormatDuration(connected ? timeouts.stall : timeouts.connect))));
  return Clock::time_point::max();
}

}  // namespace kvmesh
