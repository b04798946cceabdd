// Tells one coordinator that a worker is alive, however busy its report stream is.
#ifndef KVMESH_WORKER_REPORT_HEARTBEATER_H_
#define KVMESH_WORKER_REPORT_HEARTBEATER_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/random.h"
#include "kvstore/base/status.h"
#include "worker/report/backoff.h"
#include "worker/report/reporter.h"

namespace kvmesh {

// Sends unary heartbeats from a thread and a channel of its own, from construction to Stop: the next one after the
// interval that the coordinator answered, or after a back-off when one failed. A coordinator that does not know the
// worker (ABORTED) makes the reporter register anew. Thread safe.
class Heartbeater {
 public:
  struct Options {
    std::string coordinator_address;  // host:port
    // Makes a channel of its own connection (MakeChannel in kvstore/service/grpc_server.h). Required.
    std::function<std::shared_ptr<grpc::Channel>(const std::string& address)> make_channel;
    std::function<v1::HeartbeatRequest()> load;  // required; the whole request, asked before each one
    Reporter* reporter = nullptr;                // to the same coordinator; required, outlives this
    RandomSource* random = &RandomSource::Real();
    absl::Duration timeout = absl::Seconds(2);  // of one heartbeat
    BackoffOptions backoff;
  };

  // What the coordinator answers is kept within these.
  static constexpr absl::Duration kMinInterval = absl::Milliseconds(10);
  static constexpr absl::Duration kMaxInterval = absl::Minutes(1);

  explicit Heartbeater(Options options);
  ~Heartbeater();
  // Ends the heartbeat in progress and returns when the thread has ended.
  void Stop();

  struct Counters {
    uint64_t answered = 0;  // since start
    uint64_t unknown = 0;   // ABORTED
    uint64_t failed = 0;    // anything else
  };
  Counters counters() const;
  // Waits until `count` heartbeats were answered since start. False: `timeout` passed first, or this is stopped.
  bool WaitAnswered(uint64_t count, absl::Duration timeout) const;

 private:
  void Run();
  // Sends one and counts it. Returns how long to pause.
  absl::Duration Beat();

  const Options options_;
  std::shared_ptr<grpc::Channel> channel_;  // of the thread
  Backoff backoff_;                         // of the thread

  mutable Mutex mu_;
  mutable CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;  // in progress
  Counters counters_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_REPORT_HEARTBEATER_H_
