// Calls and streams that the service refused or gave up, counted.
#ifndef KVMESH_COORDINATOR_SERVER_CALL_METRICS_H_
#define KVMESH_COORDINATOR_SERVER_CALL_METRICS_H_

#include "kvstore/service/metrics.h"

namespace kvmesh {

// Thread safe.
struct CallMetrics {
  // `metrics` must outlive it.
  explicit CallMetrics(Metrics& metrics)
      : waiting_refused(Refused(metrics, "waiting_calls")),
        routes_refused(Refused(metrics, "queued_routes")),
        streams_refused(Refused(metrics, "report_streams")),
        cancelled(metrics.Counter("kvmesh_coordinator_calls_cancelled_total",
                                  "Queued routes and batches that their callers gave up before they were answered")),
        unregistered(metrics.Counter("kvmesh_coordinator_streams_unregistered_total",
                                     "Report streams ended because no registration came in time")),
        report_streams(metrics.Gauge("kvmesh_coordinator_report_streams", "Report streams that are open")) {}

  prometheus::Counter& waiting_refused;
  prometheus::Counter& routes_refused;
  prometheus::Counter& streams_refused;
  prometheus::Counter& cancelled;
  prometheus::Counter& unregistered;
  prometheus::Gauge& report_streams;

 private:
  static prometheus::Counter& Refused(Metrics& metrics, const char* limit) {
    return metrics.Counter("kvmesh_coordinator_calls_refused_total", "Calls and streams refused, by the limit reached",
                           {{"limit", limit}});
  }
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_CALL_METRICS_H_
