#include "worker/server/worker_metrics.h"

#include "kvstore/service/log.h"

namespace kvmesh {
namespace {

std::string Text(absl::string_view view) { return std::string(view); }

void RaiseSeconds(prometheus::Counter& counter, absl::Duration time) {
  const double behind = absl::ToDoubleSeconds(time) - counter.Value();
  if (behind > 0) counter.Increment(behind);
}

}  // namespace

absl::string_view TierName(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kDisk:
      break;
  }
  return "disk";
}

absl::string_view HitSourceName(HitSource source) {
  return source == HitSource::kPeer ? "peer" : TierName(static_cast<Tier>(source));
}

WorkerMetrics::WorkerMetrics(Metrics& metrics)
    : metrics_(metrics),
      requested_(metrics.Counter("kvmesh_worker_requested_tokens_total", "Full-block prompt tokens looked up.")),
      computed_(metrics.Counter("kvmesh_worker_computed_tokens_total", "Prompt tokens that the model computed.")),
      drafts_accepted_(metrics.Counter("kvmesh_worker_draft_tokens_total", "Verified draft tokens, by result.",
                                       {{"result", "accepted"}})),
      drafts_rejected_(metrics.Counter("kvmesh_worker_draft_tokens_total", "Verified draft tokens, by result.",
                                       {{"result", "rejected"}})),
      resume_seconds_(metrics.Histogram("kvmesh_worker_resume_seconds", "Time to resume a prompt's cached prefix.")),
      first_token_seconds_(metrics.Histogram("kvmesh_worker_first_token_seconds", "Time to first token of Generate.")),
      served_bytes_(metrics.Counter("kvmesh_worker_served_bytes_total", "Block bytes sent to peers.")),
      sequences_(metrics.Gauge("kvmesh_worker_open_sequences", "Sequences open now.")),
      pinned_(metrics.Gauge("kvmesh_worker_pinned_blocks", "Device blocks with at least one pin.")),
      private_(metrics.Gauge("kvmesh_worker_private_blocks", "Device blocks that are being filled.")),
      disk_writable_(metrics.Gauge("kvmesh_worker_disk_writable", "1 while there is a disk tier that takes blocks.")),
      disk_errors_(metrics.Counter("kvmesh_worker_disk_errors_total",
                                   "I/O and catalog errors of the disk tier, and openings that failed.")) {
  for (size_t i = 0; i < kHitSources; ++i) {
    hits_[i] = &metrics.Counter("kvmesh_worker_hit_tokens_total", "Prompt tokens found, by where.",
                                {{"source", Text(HitSourceName(static_cast<HitSource>(i)))}});
    lossy_hits_[i] = &metrics.Counter("kvmesh_worker_lossy_hit_tokens_total",
                                      "Prompt tokens found in copies that are not exact, by where.",
                                      {{"source", Text(HitSourceName(static_cast<HitSource>(i)))}});
  }
  for (const Tier tier : kAllTiers) {
    const size_t i = static_cast<size_t>(tier);
    const Labels labels = {{"tier", Text(TierName(tier))}};
    used_[i] = &metrics.Gauge("kvmesh_worker_used_blocks", "Blocks in use, by tier.", labels);
    capacity_[i] = &metrics.Gauge("kvmesh_worker_capacity_blocks", "Blocks that fit, by tier.", labels);
    evictions_[i] = &metrics.Counter("kvmesh_worker_evicted_blocks_total", "Blocks that left a tier for room.", labels);
    promoted_[i] =
        &metrics.Counter("kvmesh_worker_promoted_bytes_total", "Bytes loaded to the device, by source tier.", labels);
    demoted_[i] =
        &metrics.Counter("kvmesh_worker_demoted_bytes_total", "Bytes written down, by destination tier.", labels);
    if (tier == Tier::kDevice) continue;
    lossy_promoted_[i] = &metrics.Counter("kvmesh_worker_lossy_promoted_blocks_total",
                                          "Blocks loaded to the device that are not exact, by source tier.", labels);
    lossy_demoted_[i] =
        &metrics.Counter("kvmesh_worker_lossy_demoted_blocks_total",
                         "Blocks written down that are not exact from then on, by destination tier.", labels);
    for (const ConversionDirection direction : {ConversionDirection::kDown, ConversionDirection::kUp}) {
      Labels of = labels;
      of["direction"] = direction == ConversionDirection::kUp ? "up" : "down";
      conversions_[i][static_cast<size_t>(direction)] = {
          &metrics.Counter("kvmesh_worker_converted_blocks_total",
                           "Blocks converted into a tier's format, or from it for the device or a peer.", of),
          &metrics.Counter("kvmesh_worker_conversion_seconds_total", "Time of conversions, sealing included.", of)};
    }
  }
  for (size_t i = 0; i < kMissReasons; ++i) {
    load_failures_[i] =
        &metrics.Counter("kvmesh_worker_load_stops_total", "Lookups and loads that ended early, by reason.",
                         {{"reason", Text(MissReasonName(static_cast<MissReason>(i)))}});
  }
}

void WorkerMetrics::OnResume(uint64_t requested, const HitTokensBySource& hits, absl::Duration took) {
  requested_.Increment(static_cast<double>(requested));
  for (size_t i = 0; i < kHitSources; ++i) hits_[i]->Increment(static_cast<double>(hits[i]));
  resume_seconds_.Observe(absl::ToDoubleSeconds(took));
  MutexLock lock(mu_);
  totals_.requested_tokens += requested;
  for (size_t i = 0; i < kHitSources; ++i) totals_.hits[i] += hits[i];
}

void WorkerMetrics::OnLossyHits(const HitTokensBySource& hits) {
  for (size_t i = 0; i < kHitSources; ++i) lossy_hits_[i]->Increment(static_cast<double>(hits[i]));
}

void WorkerMetrics::OnMiss(absl::string_view reason, uint64_t tokens) {
  metrics_
      .Counter("kvmesh_worker_missed_tokens_total", "Full-block prompt tokens not found, by reason.",
               {{"reason", Text(reason)}})
      .Increment(static_cast<double>(tokens));
  MutexLock lock(mu_);
  totals_.misses[Text(reason)] += tokens;
}

void WorkerMetrics::OnFetch(absl::string_view peer, absl::string_view transport, const absl::Status& outcome,
                            uint64_t bytes, absl::Duration took) {
  if (!outcome.ok()) {
    Log(LogLevel::kWarning, "worker", "fetch ended early",
        {{"peer", peer}, {"transport", transport}, {"status", outcome.ToString()}, {"bytes", bytes}});
  }
  const Labels link = {{"transport", Text(transport)}};
  metrics_
      .Counter("kvmesh_worker_fetches_total", "Pulls from peers, by outcome.",
               {{"transport", Text(transport)}, {"outcome", StatusLabel(outcome)}})
      .Increment();
  metrics_.Counter("kvmesh_worker_fetched_bytes_total", "Block bytes pulled from peers.", link)
      .Increment(static_cast<double>(bytes));
  metrics_.Histogram("kvmesh_worker_fetch_seconds", "Time of one pull from a peer.", link)
      .Observe(absl::ToDoubleSeconds(took));
  MutexLock lock(mu_);
  totals_.fetched_bytes += bytes;
}

void WorkerMetrics::OnGenerate(uint64_t computed_tokens, absl::Duration to_first_token) {
  computed_.Increment(static_cast<double>(computed_tokens));
  first_token_seconds_.Observe(absl::ToDoubleSeconds(to_first_token));
  MutexLock lock(mu_);
  totals_.computed_tokens += computed_tokens;
}

void WorkerMetrics::OnDrafts(uint64_t proposed, uint64_t accepted) {
  drafts_accepted_.Increment(static_cast<double>(accepted));
  drafts_rejected_.Increment(static_cast<double>(proposed - accepted));
}

void WorkerMetrics::Update(const BlockStore::Books& books, uint64_t served_bytes, uint64_t open_sequences) {
  for (size_t i = 0; i < 3; ++i) {
    used_[i]->Set(static_cast<double>(books.tiers[i].used));
    capacity_[i]->Set(static_cast<double>(books.tiers[i].capacity));
    RaiseTo(*evictions_[i], books.evictions[i]);
    RaiseTo(*promoted_[i], books.promoted_bytes[i]);
    RaiseTo(*demoted_[i], books.demoted_bytes[i]);
    if (lossy_promoted_[i] == nullptr) continue;
    RaiseTo(*lossy_promoted_[i], books.lossy_promotions[i]);
    RaiseTo(*lossy_demoted_[i], books.lossy_demotions[i]);
    for (size_t direction = 0; direction < 2; ++direction) {
      const ConversionTotals& totals = books.conversions[i][direction];
      RaiseTo(*conversions_[i][direction].blocks, totals.blocks);
      RaiseSeconds(*conversions_[i][direction].seconds, totals.time);
    }
  }
  for (size_t i = 0; i < kMissReasons; ++i) RaiseTo(*load_failures_[i], books.misses[i]);
  RaiseTo(served_bytes_, served_bytes);
  sequences_.Set(static_cast<double>(open_sequences));
  pinned_.Set(static_cast<double>(books.pinned_blocks));
  private_.Set(static_cast<double>(books.private_blocks));
  disk_writable_.Set(books.disk_writable ? 1 : 0);
  RaiseTo(disk_errors_, books.disk_errors);
}

WorkerTotals WorkerMetrics::totals() const {
  MutexLock lock(mu_);
  return totals_;
}

}  // namespace kvmesh
