// One report stream, without its I/O: messages of a worker in, answers out.
#ifndef KVMESH_COORDINATOR_REPORT_REPORT_SESSION_H_
#define KVMESH_COORDINATOR_REPORT_REPORT_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/prefix_index/prefix_index.h"
#include "coordinator/registry/worker_registry.h"
#include "coordinator/report/command_board.h"
#include "coordinator/report/report_metrics.h"
#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/base/bytes.h"
#include "kvstore/base/status.h"

namespace kvmesh {

// Shared by all sessions; all must outlive them.
struct ReportContext {
  WorkerRegistry& registry;
  PrefixIndex& index;
  CommandBoard& commands;
  ReportMetrics& metrics;
  Incarnation coordinator;
};

// A worker that contradicts the protocol this often is quarantined: nothing of it is found until it restarts.
inline constexpr int kQuarantineAfter = 3;
// Events kept while a snapshot arrives, to be applied after it, and their bytes.
inline constexpr size_t kMaxHeldEvents = 65536;
inline constexpr size_t kMaxHeldBytes = 32 << 20;

// States of the worker's reports, which outlive the stream (WorkerEntry::progress):
//
//   awaiting snapshot --first piece--> in snapshot --last piece, digests equal--> live
//   live --gap, digest mismatch or protocol error--> awaiting snapshot (a ResyncRequest was answered)
//   any --third protocol error--> quarantined
//
// Live: an event with the next sequence number is applied, an earlier one is skipped, a later one is a gap. Otherwise
// the visible index takes removals only. A snapshot is a cut at its sequence number; events after that number that come
// between its pieces are held and applied after it. A worker that registers again on a new stream, as the same
// incarnation, goes on after `applied_sequence`, which follows Registered.
//
// One thread at a time. Takes the entry's report_mu while a message is applied.
class ReportSession {
 public:
  // `sink` takes commands for the worker, from any thread.
  ReportSession(const ReportContext& context, CommandBoard::Sink sink);
  // The stream has ended.
  ~ReportSession();
  ReportSession(const ReportSession&) = delete;
  ReportSession& operator=(const ReportSession&) = delete;

  // Appends the answers to `out`. A status that is not OK ends the stream, after the answers. INVALID_ARGUMENT: a
  // malformed registration, naming the field. RESOURCE_EXHAUSTED: too many workers. FAILED_PRECONDITION: not
  // registered, or quarantined. ABORTED: the worker was lost or replaced, or another stream took over; register again.
  absl::Status OnMessage(const v1::ReportRequest& request, std::vector<v1::ReportResponse>& out);

 private:
  using Responses = std::vector<v1::ReportResponse>;

  absl::Status OnRegister(const v1::WorkerInfo& info, Responses& out);
  absl::Status OnEvents(const v1::EventBatch& batch, Responses& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(entry_->report_mu);
  absl::Status OnPiece(const v1::SnapshotPiece& piece, Responses& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(entry_->report_mu);

  absl::Status OnEvent(const v1::Event& event, Responses& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(entry_->report_mu);
  // Applies an event in sequence. INVALID_ARGUMENT: protocol error. DATA_LOSS: digest mismatch.
  absl::Status Apply(const v1::Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(entry_->report_mu);
  // INVALID_ARGUMENT: malformed keys.
  absl::Status ApplyUsable(const v1::UsableEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(entry_->report_mu);
  void ApplyRemovalOnly(const v1::Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(entry_->report_mu);
  absl::Status ApplyPiece(const v1::SnapshotPiece& piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(entry_->report_mu);
  absl::Status Commit(const v1::SnapshotPiece& piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(entry_->report_mu);

  void Resync(ResyncReason reason, absl::string_view detail, Responses& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(entry_->report_mu);
  // Counts a protocol error and asks for a snapshot with `reason`; FAILED_PRECONDITION when it was one too many.
  absl::Status Refuse(const absl::Status& error, ResyncReason reason, Responses& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(entry_->report_mu);
  // Keeps an event until the snapshot is there; asks for another snapshot when that is one too many.
  void Hold(const v1::Event& event, Responses& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(entry_->report_mu);
  // What was held; holds nothing after.
  std::vector<v1::Event> TakeHeld();
  void Acknowledge(Responses& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(entry_->report_mu);
  ReportProgress::Phase phase() const { return entry_->progress.phase; }

  const ReportContext context_;
  const CommandBoard::Sink sink_;
  const uint64_t session_;
  std::shared_ptr<WorkerEntry> entry_;  // null until registered
  uint64_t snapshot_sequence_ = 0;
  std::vector<v1::Event> held_;
  size_t held_bytes_ = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_REPORT_REPORT_SESSION_H_
