// What happened on the report streams, counted per reason.
#ifndef KVMESH_COORDINATOR_REPORT_REPORT_METRICS_H_
#define KVMESH_COORDINATOR_REPORT_REPORT_METRICS_H_

#include <array>
#include <cstddef>

#include "kvstore/service/metrics.h"

namespace kvmesh {

// Why a worker was asked for a snapshot; the values of v1::ResyncRequest::Reason.
enum class ResyncReason { kNewIncarnation = 1, kSequenceGap = 2, kDigestMismatch = 3, kProtocolError = 4 };

inline constexpr std::array<ResyncReason, 4> kAllResyncReasons = {
    ResyncReason::kNewIncarnation, ResyncReason::kSequenceGap, ResyncReason::kDigestMismatch,
    ResyncReason::kProtocolError};

// Thread safe.
class ReportMetrics {
 public:
  // `metrics` must outlive it.
  explicit ReportMetrics(Metrics& metrics);

  prometheus::Counter& resyncs(ResyncReason reason) { return *resyncs_[static_cast<size_t>(reason) - 1]; }

  prometheus::Counter& protocol_errors;
  prometheus::Counter& quarantines;
  prometheus::Counter& snapshots;
  prometheus::Counter& events_applied;
  prometheus::Counter& events_repeated;
  prometheus::Counter& events_unknown;
  prometheus::Counter& events_while_resyncing;
  prometheus::Counter& pieces_ignored;
  prometheus::Counter& boundaries_shed;
  prometheus::Counter& commands_sent;
  prometheus::Counter& commands_refused;
  prometheus::Counter& commands_timed_out;
  prometheus::Counter& results_unmatched;

 private:
  std::array<prometheus::Counter*, kAllResyncReasons.size()> resyncs_;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_REPORT_REPORT_METRICS_H_
