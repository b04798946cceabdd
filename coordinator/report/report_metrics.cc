#include "coordinator/report/report_metrics.h"

namespace kvmesh {
namespace {

prometheus::Counter& Events(Metrics& metrics, const char* outcome) {
  return metrics.Counter("kvmesh_coordinator_report_events_total", "Events of workers by what became of them",
                         {{"outcome", outcome}});
}

prometheus::Counter& Commands(Metrics& metrics, const char* outcome) {
  return metrics.Counter("kvmesh_coordinator_commands_total", "Commands to workers by what became of them",
                         {{"outcome", outcome}});
}

prometheus::Counter& Resyncs(Metrics& metrics, const char* reason) {
  return metrics.Counter("kvmesh_coordinator_resyncs_total", "Snapshots asked of workers by reason",
                         {{"reason", reason}});
}

}  // namespace

ReportMetrics::ReportMetrics(Metrics& metrics)
    : protocol_errors(metrics.Counter("kvmesh_coordinator_protocol_errors_total",
                                      "Reports refused because they contradict the protocol or the index")),
      quarantines(
          metrics.Counter("kvmesh_coordinator_quarantines_total", "Workers whose reports are refused for good")),
      snapshots(metrics.Counter("kvmesh_coordinator_snapshots_total", "Snapshots swapped in")),
      events_applied(Events(metrics, "applied")),
      events_repeated(Events(metrics, "repeated")),
      events_unknown(Events(metrics, "unknown_kind")),
      events_while_resyncing(Events(metrics, "while_resyncing")),
      pieces_ignored(metrics.Counter("kvmesh_coordinator_snapshot_pieces_ignored_total",
                                     "Pieces of snapshots that were given up before")),
      boundaries_shed(metrics.Counter("kvmesh_coordinator_boundaries_shed_total",
                                      "Usable boundaries of workers with windows, refused at the bound")),
      commands_sent(Commands(metrics, "sent")),
      commands_refused(Commands(metrics, "refused")),
      commands_timed_out(Commands(metrics, "timed_out")),
      results_unmatched(Commands(metrics, "result_unmatched")),
      resyncs_{&Resyncs(metrics, "new_incarnation"), &Resyncs(metrics, "sequence_gap"),
               &Resyncs(metrics, "digest_mismatch"), &Resyncs(metrics, "protocol_error")} {}

}  // namespace kvmesh
