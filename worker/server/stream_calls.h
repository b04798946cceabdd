// Streams in progress, so that one whose caller went silent ends with its deadline and lets go of what it pins.
#ifndef KVMESH_WORKER_SERVER_STREAM_CALLS_H_
#define KVMESH_WORKER_SERVER_STREAM_CALLS_H_

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "kvstore/base/mutex.h"

namespace kvmesh {

// Thread safe. gRPC ends a call at the deadline that the caller set; calls that came without one have the server's.
class StreamCalls {
 public:
  // Watches one call while it lives.
  class Watch {
   public:
    Watch(StreamCalls& calls, grpc::ServerContext& context, absl::Time deadline) : calls_(calls), context_(context) {
      MutexLock lock(calls_.mu_);
      calls_.deadlines_[&context_] = deadline;
    }
    ~Watch() {
      MutexLock lock(calls_.mu_);
      calls_.deadlines_.erase(&context_);
    }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    StreamCalls& calls_;
    grpc::ServerContext& context_;
  };

  // Sessions have no deadline: absl::InfiniteFuture().
  void CancelSessions() {
    Cancel([](absl::Time deadline) { return deadline == absl::InfiniteFuture(); });
  }
  void CancelExpired(absl::Time now) {
    Cancel([now](absl::Time deadline) { return deadline <= now; });
  }

 private:
  template <class Predicate>
  void Cancel(Predicate matches) {
    MutexLock lock(mu_);
    for (const auto& [context, deadline] : deadlines_) {
      if (matches(deadline)) context->TryCancel();
    }
  }

  Mutex mu_;
  absl::flat_hash_map<grpc::ServerContext*, absl::Time> deadlines_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_SERVER_STREAM_CALLS_H_
