#include "worker/report/heartbeater.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kvmesh/v1/coordinator.grpc.pb.h"
#include "kvstore/base/check.h"

namespace kvmesh {

Heartbeater::Heartbeater(Options options) : options_(std::move(options)), backoff_(options_.backoff, *options_.random) {
  KVMESH_CHECK(options_.make_channel != nullptr && options_.load != nullptr, "a heartbeater lacks a callback");
  KVMESH_CHECK(options_.reporter != nullptr, "a heartbeater without a reporter");
  thread_ = std::thread([this] { Run(); });
}

Heartbeater::~Heartbeater() { Stop(); }

void Heartbeater::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    if (call_ != nullptr) call_->TryCancel();
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

Heartbeater::Counters Heartbeater::counters() const {
  MutexLock lock(mu_);
  return counters_;
}

bool Heartbeater::WaitAnswered(uint64_t count, absl::Duration timeout) const {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24)));
  MutexLock lock(mu_);
  while (counters_.answered < count) {
    const auto now = std::chrono::steady_clock::now();
    if (stopping_ || now >= end) return false;
    changed_.WaitFor(lock, absl::FromChrono(end - now));
  }
  return true;
}

void Heartbeater::Run() {
  MutexLock lock(mu_);
  while (!stopping_) {
    lock.Unlock();
    const absl::Duration pause = Beat();
    const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(pause);
    lock.Lock();
    while (!stopping_) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= end) break;
      changed_.WaitFor(lock, absl::FromChrono(end - now));
    }
  }
}

absl::Duration Heartbeater::Beat() {
  if (channel_ == nullptr) channel_ = options_.make_channel(options_.coordinator_address);
  const auto stub = v1::Coordinator::NewStub(channel_);
  const v1::HeartbeatRequest request = options_.load();
  const uint64_t registration = options_.reporter->registration();
  v1::HeartbeatResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(options_.timeout));
  {
    MutexLock lock(mu_);
    if (stopping_) return absl::ZeroDuration();
    call_ = &context;
  }
  const grpc::Status status = stub->Heartbeat(&context, request, &response);
  {
    MutexLock lock(mu_);
    call_ = nullptr;
    ++(status.ok()                                        ? counters_.answered
       : status.error_code() == grpc::StatusCode::ABORTED ? counters_.unknown
                                                          : counters_.failed);
  }
  changed_.NotifyAll();
  if (status.ok()) {
    backoff_.Reset();
    const absl::Duration interval = absl::Milliseconds(std::min<uint64_t>(response.interval_ms(), 3'600'000));
    return std::clamp(interval, kMinInterval, kMaxInterval);
  }
  if (status.error_code() == grpc::StatusCode::ABORTED) {
    options_.reporter->Reconnect(registration);
  } else {
    channel_ = nullptr;  // the next one does not wait for a connection that failed
  }
  return backoff_.Next();
}

}  // namespace kvmesh
