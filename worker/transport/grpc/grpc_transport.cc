#include "worker/transport/grpc/grpc_transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvstore/base/check.h"
#include "worker/transport/serve/fetch_request.h"

namespace kvmesh {

GrpcTransport::GrpcTransport(Options options)
    : options_(std::move(options)),
      channels_(options_.make_channel, options_.max_channels),
      watcher_([this] { Watch(); }) {}

GrpcTransport::~GrpcTransport() {
  absl::flat_hash_map<TransferId, std::shared_ptr<FetchCall>> left;
  {
    MutexLock lock(mu_);
    stopping_ = true;
    left.swap(calls_);
  }
  posted_.NotifyAll();
  watcher_.join();
  for (const auto& [id, call] : left) call->Fail(absl::CancelledError("the transport ends"));
  for (const auto& [id, call] : left) {
    while (!call->WaitForProgress(SIZE_MAX, absl::InfiniteDuration()).quiescent) continue;
  }
}

absl::Status GrpcTransport::RegisterMemory(const KvPoolView&) { return absl::OkStatus(); }

absl::StatusOr<TransferId> GrpcTransport::Prepare(TransferRequest request) {
  KVMESH_RETURN_IF_ERROR(CheckTransferRequest(request));
  if (request.peer_address.empty()) return absl::InvalidArgumentError("peer_address: empty");
  auto call = std::make_shared<FetchCall>(
      request, MakeFetchRequest(request, options_.receiver_id, options_.receiver_incarnation), channels_);

  MutexLock lock(mu_);
  if (calls_.size() >= options_.max_transfers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("transfers: the limit of ", options_.max_transfers, " is reached"));
  }
  const TransferId id(++last_id_);
  calls_[id] = std::move(call);
  return id;
}

void GrpcTransport::Post(TransferId transfer) {
  Find(transfer)->Start();
  {
    MutexLock lock(mu_);
    ++posts_;
  }
  posted_.NotifyAll();
}

TransferProgress GrpcTransport::Poll(TransferId transfer, size_t seen) { return Find(transfer)->Progress(seen); }

TransferProgress GrpcTransport::WaitForProgress(TransferId transfer, size_t seen, absl::Duration timeout) {
  return Find(transfer)->WaitForProgress(seen, timeout);
}

void GrpcTransport::Cancel(TransferId transfer) { Find(transfer)->Fail(absl::CancelledError("by the receiver")); }

void GrpcTransport::Release(TransferId transfer) {
  std::shared_ptr<FetchCall> call = Find(transfer);
  KVMESH_CHECK(call->Progress(SIZE_MAX).quiescent, "a transfer is released before it is quiescent");
  MutexLock lock(mu_);
  calls_.erase(transfer);
}

size_t GrpcTransport::transfers() const {
  MutexLock lock(mu_);
  return calls_.size();
}

std::shared_ptr<FetchCall> GrpcTransport::Find(TransferId transfer) const {
  MutexLock lock(mu_);
  const auto found = calls_.find(transfer);
  KVMESH_CHECK(found != calls_.end(), "no such transfer");
  return found->second;
}

void GrpcTransport::Watch() {
  MutexLock lock(mu_);
  while (!stopping_) {
    const uint64_t posts = posts_;
    std::vector<std::shared_ptr<FetchCall>> calls;
    calls.reserve(calls_.size());
    for (const auto& [id, call] : calls_) calls.push_back(call);
    lock.Unlock();
    const FetchCall::Clock::time_point now = FetchCall::Clock::now();
    FetchCall::Clock::time_point next = FetchCall::Clock::time_point::max();
    for (const std::shared_ptr<FetchCall>& call : calls)
      next = std::min(next, call->CheckSilence(now, options_.timeouts));
    calls.clear();
    lock.Lock();
    if (stopping_ || posts_ != posts) continue;
    if (next == FetchCall::Clock::time_point::max()) {
      posted_.Wait(lock);
    } else {
      posted_.WaitFor(lock, absl::FromChrono(next - FetchCall::Clock::now()));
    }
  }
}

}  // namespace kvmesh
