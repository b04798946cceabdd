// Tells one coordinator what a worker holds, and carries out its orders.
#ifndef KVMESH_WORKER_REPORT_REPORTER_H_
#define KVMESH_WORKER_REPORT_REPORTER_H_

#include <grpcpp/channel.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/base/executor.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/random.h"
#include "kvstore/tiers/block_store.h"
#include "kvstore/tiers/event_log.h"
#include "worker/report/backoff.h"
#include "worker/report/command_desk.h"
#include "worker/report/command_handler.h"
#include "worker/report/event_feed.h"

namespace kvmesh {

class ReportStream;

// Runs from construction to Stop, over any number of streams, each on a fresh channel:
//
//   connecting -> registered -> placed -> events..., a snapshot when asked for one or fallen behind -> ended ->
//   back-off
//
// A coordinator answers the registration with Registered and then with its place: `applied_sequence` (events go on
// after it) or a ResyncRequest (a snapshot, then the events after it). Every event of the store's log becomes one Event
// with its sequence number. Orders run on the executor; their results go back on the stream that brought them.
//
// What it keeps is bounded: the orders in progress, a batch of events or a snapshot. Thread safe.
class Reporter {
 public:
  struct Options {
    std::string coordinator_address;  // host:port
    // Makes a channel of its own connection (MakeChannel in kvstore/service/grpc_server.h). Required.
    std::function<std::shared_ptr<grpc::Channel>(const std::string& address)> make_channel;
    BlockStore* store = nullptr;                  // required, outlives this
    std::function<v1::WorkerInfo()> worker_info;  // required; asked at each registration
    CommandHandler* handler = nullptr;            // required, outlives this
    Executor* executor = nullptr;                 // required, outlives this
    RandomSource* random = &RandomSource::Real();
    EventFeed::Options feed;
    BackoffOptions backoff;
    absl::Duration register_timeout = absl::Seconds(10);  // until the coordinator has answered with its place
    size_t snapshot_piece_bytes = 1 << 20;
    size_t max_commands = 64;
  };

  explicit Reporter(Options options);
  // Stop, and waits for orders that have begun.
  ~Reporter();
  // Ends the stream and returns when the threads have ended. Orders that have begun run on.
  void Stop();

  // Number of registrations that were accepted so far; names the current one. 0: none yet.
  uint64_t registration() const;
  // Ends the current stream so that the worker registers anew; nothing unless `registration` is still the current one.
  void Reconnect(uint64_t registration);

  // Last sequence number of the store's log that the coordinator has applied, by what it said on the current stream; 0
  // when it said nothing yet.
  uint64_t applied_sequence() const;
  // Waits until that reaches `sequence`. False: `timeout` passed first, or this is stopped.
  bool WaitApplied(uint64_t sequence, absl::Duration timeout) const;

  struct Counters {
    bool registered = false;      // the current stream
    uint64_t registrations = 0;   // these and below: since start
    uint64_t streams_failed = 0;  // ended otherwise than by Stop and Reconnect
    uint64_t events_sent = 0;
    uint64_t snapshots_sent = 0;  // completely
    uint64_t resyncs_asked = 0;   // by the coordinator
    uint64_t fell_behind = 0;     // the log had dropped events that were not sent
    CommandDesk::Counters commands;
  };
  Counters counters() const;

 private:
  void Run();
  // One stream from its opening to its end. Returns its status.
  grpc::Status RunStream();
  void OnResponse(ReportStream& stream, const v1::ReportResponse& response);
  bool Register(ReportStream& stream);
  void SendReports(ReportStream& stream);
  // Each returns false when the stream has ended.
  bool SendResults(ReportStream& stream);
  bool SendBatch(ReportStream& stream, v1::ReportRequest& request);
  bool SendSnapshot(ReportStream& stream);
  // Waits for something to send, or the end of the stream.
  void AwaitWork();
  // There may be a result or an event to send. Called under the locks of the store.
  void NoteWork();
  bool over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || ended_; }

  const Options options_;
  EventFeed feed_;            // of the reporting thread
  bool fell_behind_ = false;  // of the reporting thread: a snapshot is due
  Backoff backoff_;           // of the reporting thread

  mutable Mutex mu_;
  mutable CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  ReportStream* stream_ ABSL_GUARDED_BY(mu_) = nullptr;  // the current one, to be cancelled
  bool placed_ ABSL_GUARDED_BY(mu_) = false;             // the coordinator has said from where to report
  bool resync_ ABSL_GUARDED_BY(mu_) = false;             // it waits for a snapshot
  bool ended_ ABSL_GUARDED_BY(mu_) = false;              // the reader has
  bool work_ ABSL_GUARDED_BY(mu_) = false;
  bool reconnecting_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t applied_ ABSL_GUARDED_BY(mu_) = 0;
  Counters counters_ ABSL_GUARDED_BY(mu_);

  AppendHook hook_;
  CommandDesk desk_;
  std::thread thread_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_REPORT_REPORTER_H_
