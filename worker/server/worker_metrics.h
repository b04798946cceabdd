// The worker's metrics: what the engine tells, and what the books say at each collection.
#ifndef KVMESH_WORKER_SERVER_WORKER_METRICS_H_
#define KVMESH_WORKER_SERVER_WORKER_METRICS_H_

#include <array>
#include <functional>
#include <map>
#include <string>

#include "kvstore/base/mutex.h"
#include "kvstore/service/metrics.h"
#include "kvstore/tiers/block_store.h"
#include "worker/engine/observer.h"

namespace kvmesh {

// Labels of tiers and hit sources.
absl::string_view TierName(Tier tier);
absl::string_view HitSourceName(HitSource source);

// Totals since start, for the Stats call.
struct WorkerTotals {
  uint64_t requested_tokens = 0;
  HitTokensBySource hits{};
  std::map<std::string, uint64_t> misses;  // tokens by reason
  uint64_t fetched_bytes = 0;
  uint64_t computed_tokens = 0;
};

// Thread safe.
class WorkerMetrics : public EngineObserver {
 public:
  explicit WorkerMetrics(Metrics& metrics);

  void OnResume(uint64_t requested, const HitTokensBySource& hits, absl::Duration took) override;
  void OnLossyHits(const HitTokensBySource& hits) override;
  void OnMiss(absl::string_view reason, uint64_t tokens) override;
  void OnFetch(absl::string_view peer, absl::string_view transport, const absl::Status& outcome, uint64_t bytes,
               absl::Duration took) override;

  // Computed tokens and time to first token of one generation.
  void OnGenerate(uint64_t computed_tokens, absl::Duration to_first_token);
  // Drafts that a pass has verified, and those of them that were right.
  void OnDrafts(uint64_t proposed, uint64_t accepted);
  // Sets gauges and moves counters from the books; called before each collection.
  void Update(const BlockStore::Books& books, uint64_t served_bytes, uint64_t open_sequences);

  WorkerTotals totals() const;

 private:
  Metrics& metrics_;
  prometheus::Counter& requested_;
  std::array<prometheus::Counter*, kHitSources> hits_;
  std::array<prometheus::Counter*, kHitSources> lossy_hits_;
  prometheus::Counter& computed_;
  prometheus::Counter& drafts_accepted_;
  prometheus::Counter& drafts_rejected_;
  prometheus::Histogram& resume_seconds_;
  prometheus::Histogram& first_token_seconds_;
  prometheus::Counter& served_bytes_;
  prometheus::Gauge& sequences_;
  prometheus::Gauge& pinned_;
  prometheus::Gauge& private_;
  prometheus::Gauge& disk_writable_;
  prometheus::Counter& disk_errors_;
  std::array<prometheus::Gauge*, 3> used_;
  std::array<prometheus::Gauge*, 3> capacity_;
  std::array<prometheus::Counter*, 3> evictions_;
  std::array<prometheus::Counter*, 3> promoted_;
  std::array<prometheus::Counter*, 3> demoted_;
  std::array<prometheus::Counter*, 3> lossy_promoted_{};
  std::array<prometheus::Counter*, 3> lossy_demoted_{};
  // By tier and ConversionDirection; of the device none.
  struct ConversionMetrics {
    prometheus::Counter* blocks = nullptr;
    prometheus::Counter* seconds = nullptr;
  };
  std::array<std::array<ConversionMetrics, 2>, 3> conversions_;
  std::array<prometheus::Counter*, kMissReasons> load_failures_;
  mutable Mutex mu_;
  WorkerTotals totals_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_SERVER_WORKER_METRICS_H_
