#include "coordinator/report/report_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/report/report_messages.h"
#include "kvstore/service/log.h"
#include "kvstore/wire/protocol.h"
#include "kvstore/wire/wire.h"

namespace kvmesh {

using Phase = ReportProgress::Phase;

ReportSession::ReportSession(const ReportContext& context, CommandBoard::Sink sink)
    : context_(context), sink_(std::move(sink)), session_(context.commands.NewSession()) {}

ReportSession::~ReportSession() {
  if (entry_ != nullptr) context_.commands.Detach(entry_->description().id, session_);
}

absl::Status ReportSession::OnMessage(const v1::ReportRequest& request, Responses& out) {
  using Kind = v1::ReportRequest;
  if (request.kind_case() == Kind::kRegister) return OnRegister(request.register_(), out);
  if (entry_ == nullptr) return absl::FailedPreconditionError("report: register first");
  MutexLock lock(entry_->report_mu);
  if (entry_->gone()) return absl::AbortedError("report: the worker was lost or replaced; register again");
  if (entry_->progress.session != session_) return absl::AbortedError("report: another stream took over");
  switch (request.kind_case()) {
    case Kind::kEvents:
      return OnEvents(request.events(), out);
    case Kind::kSnapshot:
      return OnPiece(request.snapshot(), out);
    case Kind::kCommandResult:
      lock.Unlock();
      context_.commands.Resolve(entry_->description().id, request.command_result());
      return absl::OkStatus();
    default:
      context_.metrics.events_unknown.Increment();
      return absl::OkStatus();
  }
}

absl::Status ReportSession::OnRegister(const v1::WorkerInfo& info, Responses& out) {
  const absl::StatusOr<WorkerDescription> description = FromWire(info);
  if (!description.ok()) return description.status();
  const absl::StatusOr<std::shared_ptr<WorkerEntry>> entry = context_.registry.Register(*description);
  if (!entry.ok()) return entry.status();
  if (entry_ != nullptr && entry_->description().id != description->id) {
    context_.commands.Detach(entry_->description().id, session_);
  }
  entry_ = *entry;
  TakeHeld();

  MutexLock lock(entry_->report_mu);
  ReportProgress& progress = entry_->progress;
  if (entry_->gone()) return absl::AbortedError("report: the worker was lost or replaced; register again");
  if (progress.phase == Phase::kQuarantined) return absl::FailedPreconditionError("report: quarantined");
  if (progress.session > session_) return absl::AbortedError("report: another stream took over");
  progress.session = session_;
  context_.commands.Attach(description->id, session_, sink_);
  v1::Registered& registered = *out.emplace_back().mutable_registered();
  registered.set_protocol_version(std::min(kProtocolVersion, description->protocol_version));
  registered.set_coordinator_incarnation(context_.coordinator.ToString());
  if (progress.phase == Phase::kLive) {
    Acknowledge(out);
  } else {
    Resync(ResyncReason::kNewIncarnation, "registered", out);
  }
  return absl::OkStatus();
}

absl::Status ReportSession::OnEvents(const v1::EventBatch& batch, Responses& out) {
  const uint64_t before = entry_->progress.applied_sequence;
  for (const v1::Event& event : batch.events()) KVMESH_RETURN_IF_ERROR(OnEvent(event, out));
  if (phase() == Phase::kLive && entry_->progress.applied_sequence != before) Acknowledge(out);
  return absl::OkStatus();
}

absl::Status ReportSession::OnEvent(const v1::Event& event, Responses& out) {
  ReportProgress& progress = entry_->progress;
  if (progress.phase != Phase::kLive) {
    context_.metrics.events_while_resyncing.Increment();
    ApplyRemovalOnly(event);
    if (progress.phase != Phase::kInSnapshot || event.sequence() <= snapshot_sequence_) return absl::OkStatus();
    Hold(event, out);
    return absl::OkStatus();
  }
  const uint64_t applied = progress.applied_sequence;
  if (event.sequence() <= applied) {
    context_.metrics.events_repeated.Increment();
    return absl::OkStatus();
  }
  if (event.sequence() != applied + 1) {
    Resync(ResyncReason::kSequenceGap, absl::StrCat(event.sequence(), " after ", applied), out);
    ApplyRemovalOnly(event);
    return absl::OkStatus();
  }
  const absl::Status status = Apply(event);
  if (status.code() == absl::StatusCode::kDataLoss) {
    Resync(ResyncReason::kDigestMismatch, std::string(status.message()), out);
    return absl::OkStatus();
  }
  if (!status.ok()) return Refuse(status, ResyncReason::kProtocolError, out);
  progress.applied_sequence = event.sequence();
  return absl::OkStatus();
}

absl::Status ReportSession::ApplyUsable(const v1::UsableEvent& event) {
  const auto keys = KeysFromBytes(event.keys(), "usable.keys");
  if (!keys.ok()) return keys.status();
  if (event.usable()) {
    context_.metrics.boundaries_shed.Increment(static_cast<double>(entry_->boundaries.Add(*keys)));
  } else {
    entry_->boundaries.Remove(*keys);
  }
  return absl::OkStatus();
}

absl::Status ReportSession::Apply(const v1::Event& event) {
  if (event.has_usable()) {
    context_.metrics.events_applied.Increment();
    return ApplyUsable(event.usable());
  }
  const WorkerSlot slot = entry_->slot();
  const auto set_of = [&](v1::BlockSet set) -> absl::StatusOr<IndexSet> {
    const std::optional<IndexSet> known = FromWire(set);
    if (known.has_value()) return *known;
    if (set == v1::BLOCK_SET_UNSPECIFIED) return absl::InvalidArgumentError("event.set: unspecified");
    return absl::UnimplementedError("event.set");
  };
  absl::StatusOr<IndexSet> set = absl::UnimplementedError("event.kind");
  if (event.has_stored()) set = set_of(event.stored().set());
  if (event.has_truncated()) set = set_of(event.truncated().set());
  if (event.has_cleared()) set = set_of(event.cleared().set());
  if (event.has_digest()) set = set_of(event.digest().set());
  if (absl::IsUnimplemented(set.status())) {  // from a later version: skipped
    context_.metrics.events_unknown.Increment();
    return absl::OkStatus();
  }
  if (!set.ok()) return set.status();
  context_.metrics.events_applied.Increment();

  if (event.has_stored()) {
    const absl::StatusOr<StoredRun> run = FromWire(event.stored());
    return run.ok() ? context_.index.Stored(slot, *set, *run) : run.status();
  }
  if (event.has_truncated()) {
    const absl::StatusOr<BlockKey> key = FixedFromBytes<BlockKey>(event.truncated().key(), "truncated.key");
    return key.ok() ? context_.index.Truncated(slot, *set, *key) : key.status();
  }
  if (event.has_cleared()) return context_.index.Cleared(slot, *set);
  const absl::StatusOr<SetSummary> expected = FromWire(event.digest());
  return expected.ok() ? context_.index.CheckDigest(slot, *set, *expected) : expected.status();
}

void ReportSession::ApplyRemovalOnly(const v1::Event& event) {
  if (event.has_usable() && !event.usable().usable()) ApplyUsable(event.usable()).IgnoreError();
  if (!event.has_truncated() && !event.has_cleared()) return;
  const std::optional<IndexSet> set = FromWire(event.has_truncated() ? event.truncated().set() : event.cleared().set());
  if (!set.has_value()) return;
  if (event.has_cleared()) {
    context_.index.Cleared(entry_->slot(), *set).IgnoreError();
  } else if (const auto key = FixedFromBytes<BlockKey>(event.truncated().key(), "truncated.key"); key.ok()) {
    context_.index.Truncated(entry_->slot(), *set, *key).IgnoreError();
  }
}

absl::Status ReportSession::OnPiece(const v1::SnapshotPiece& piece, Responses& out) {
  ReportProgress& progress = entry_->progress;
  if (piece.first()) {
    KVMESH_RETURN_IF_ERROR(context_.index.BeginSnapshot(entry_->slot()));
    entry_->boundaries.ResetSnapshot();
    progress.phase = Phase::kInSnapshot;
    snapshot_sequence_ = piece.sequence();
    TakeHeld();
  } else if (progress.phase != Phase::kInSnapshot) {
    context_.metrics.pieces_ignored.Increment();
    return absl::OkStatus();
  }
  const absl::Status applied = ApplyPiece(piece);
  if (!applied.ok()) return Refuse(applied, ResyncReason::kProtocolError, out);
  if (!piece.last()) return absl::OkStatus();

  const absl::Status committed = Commit(piece);
  // A snapshot that contradicts itself is not for another try without end: it counts as a protocol error.
  if (absl::IsDataLoss(committed)) return Refuse(committed, ResyncReason::kDigestMismatch, out);
  if (!committed.ok()) return Refuse(committed, ResyncReason::kProtocolError, out);
  context_.metrics.snapshots.Increment();
  progress.phase = Phase::kLive;
  progress.applied_sequence = snapshot_sequence_;
  entry_->SetWarmed();
  const std::vector<v1::Event> held = TakeHeld();
  for (const v1::Event& event : held) KVMESH_RETURN_IF_ERROR(OnEvent(event, out));
  if (phase() == Phase::kLive) Acknowledge(out);
  return absl::OkStatus();
}

absl::Status ReportSession::ApplyPiece(const v1::SnapshotPiece& piece) {
  if (piece.sequence() != snapshot_sequence_) {
    return absl::InvalidArgumentError("snapshot.sequence: another than that of the first piece");
  }
  for (const v1::StoredEvent& event : piece.runs()) {
    const std::optional<IndexSet> set = FromWire(event.set());
    if (!set.has_value()) {
      if (event.set() == v1::BLOCK_SET_UNSPECIFIED) return absl::InvalidArgumentError("snapshot.runs.set: unspecified");
      context_.metrics.events_unknown.Increment();
      continue;
    }
    const absl::StatusOr<StoredRun> run = FromWire(event);
    if (!run.ok()) return run.status();
    KVMESH_RETURN_IF_ERROR(context_.index.ApplyToSnapshot(entry_->slot(), *set, *run));
  }
  const auto usable = KeysFromBytes(piece.usable_keys(), "snapshot.usable_keys");
  if (!usable.ok()) return usable.status();
  context_.metrics.boundaries_shed.Increment(static_cast<double>(entry_->boundaries.AddToSnapshot(*usable)));
  return absl::OkStatus();
}

absl::Status ReportSession::Commit(const v1::SnapshotPiece& piece) {
  SetSummaries expected;  // a set without a digest is empty
  for (const v1::DigestEvent& digest : piece.digests()) {
    const std::optional<IndexSet> set = FromWire(digest.set());
    if (!set.has_value()) continue;
    const absl::StatusOr<SetSummary> summary = FromWire(digest);
    if (!summary.ok()) return summary.status();
    expected[IndexOf(*set)] = *summary;
  }
  KVMESH_RETURN_IF_ERROR(context_.index.CommitSnapshot(entry_->slot(), expected));
  entry_->boundaries.CommitSnapshot();
  return absl::OkStatus();
}

void ReportSession::Resync(ResyncReason reason, absl::string_view detail, Responses& out) {
  ReportProgress& progress = entry_->progress;
  context_.index.AbortSnapshot(entry_->slot());
  entry_->boundaries.ResetSnapshot();
  TakeHeld();
  progress.phase = Phase::kAwaitingSnapshot;
  ++progress.resyncs;
  context_.metrics.resyncs(reason).Increment();
  out.emplace_back().mutable_resync()->set_reason(static_cast<v1::ResyncRequest::Reason>(reason));
  Log(LogLevel::kInfo, "coordinator", "resync",
      {{"worker", entry_->description().id}, {"reason", static_cast<int>(reason)}, {"detail", detail}});
}

absl::Status ReportSession::Refuse(const absl::Status& error, ResyncReason reason, Responses& out) {
  ReportProgress& progress = entry_->progress;
  context_.metrics.protocol_errors.Increment();
  Log(LogLevel::kWarning, "coordinator", "report refused",
      {{"worker", entry_->description().id}, {"error", error.message()}});
  if (++progress.protocol_errors < kQuarantineAfter) {
    Resync(reason, error.message(), out);
    return absl::OkStatus();
  }
  context_.index.AbortSnapshot(entry_->slot());
  for (const IndexSet set : kAllIndexSets) context_.index.Cleared(entry_->slot(), set).IgnoreError();
  entry_->boundaries.ResetSnapshot();
  entry_->boundaries.Clear();
  progress.phase = Phase::kQuarantined;
  context_.metrics.quarantines.Increment();
  return absl::FailedPreconditionError(absl::StrCat("report: quarantined: ", error.message()));
}

void ReportSession::Hold(const v1::Event& event, Responses& out) {
  const size_t bytes = sizeof(v1::Event) + event.ByteSizeLong();
  if (held_.size() >= kMaxHeldEvents || held_bytes_ + bytes > kMaxHeldBytes) {
    Resync(ResyncReason::kSequenceGap,
           absl::StrCat("more than ", kMaxHeldEvents, " events or ", kMaxHeldBytes, " bytes while a snapshot arrives"),
           out);
    return;
  }
  held_.push_back(event);
  held_bytes_ += bytes;
}

std::vector<v1::Event> ReportSession::TakeHeld() {
  held_bytes_ = 0;
  return std::exchange(held_, {});
}

void ReportSession::Acknowledge(Responses& out) {
  out.emplace_back().set_applied_sequence(entry_->progress.applied_sequence);
}

}  // namespace kvmesh
