#include "coordinator/registry/worker_registry.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kvstore/block/cache_identity.h"
#include "kvstore/block/ticket.h"

namespace kvmesh {
namespace {

constexpr size_t kMaxAddressBytes = 256;

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("register.", field, ": ", what));
}

bool IsRate(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

absl::Status WorkerDescription::Validate() const {
  if (id.empty() || id.size() > kMaxWorkerIdBytes) return Invalid("worker_id", "not 1 to 128 bytes");
  for (const unsigned char c : id) {
    if (c <= ' ' || c == 0x7f) return Invalid("worker_id", "white space or a control character");
  }
  if (incarnation.IsZero()) return Invalid("incarnation", "all zero");
  if (address.size() > kMaxAddressBytes || address.find(':') == std::string::npos) {
    return Invalid("address", "not host:port");
  }
  if (protocol_version == 0) return Invalid("protocol_version", "must be positive");
  if (block_tokens < kMinBlockTokens || block_tokens > kMaxIdentityBlockTokens) {
    return Invalid("block_tokens", "not 1 to 4096");
  }
  if (block_bytes > static_cast<uint64_t>(kMaxBlockBytes)) return Invalid("block_bytes", "more than 64 MiB");
  if (!IsRate(prefill_tokens_per_second)) return Invalid("prefill_tokens_per_second", "not a rate");
  if (!IsRate(host_bytes_per_second)) return Invalid("host_bytes_per_second", "not a rate");
  if (!IsRate(disk_bytes_per_second)) return Invalid("disk_bytes_per_second", "not a rate");
  if (!IsRate(peer_bytes_per_second)) return Invalid("peer_bytes_per_second", "not a rate");
  if (registration.size() > kMaxRegistrationBytes) return absl::InvalidArgumentError("register: more than 256 KiB");
  return absl::OkStatus();
}

WorkerState WorkerEntry::state() const {
  if (gone()) return WorkerState::kLost;
  if (draining()) return WorkerState::kDraining;
  return warmed() ? WorkerState::kReady : WorkerState::kWarming;
}

void WorkerEntry::SetLoad(const HeartbeatLoad& load) {
  queued_tokens_ = load.queued_tokens;
  draining_reported_ = load.draining;
  if (IsRate(load.prefill_tokens_per_second) && load.prefill_tokens_per_second > 0) {
    prefill_tokens_per_second_ = load.prefill_tokens_per_second;
  }
}

absl::Status RegistryOptions::Validate() const {
  if (heartbeat_interval < absl::Milliseconds(1) || heartbeat_interval > absl::Minutes(10)) {
    return absl::InvalidArgumentError("registry heartbeat_interval: not 1 ms to 10 min");
  }
  if (missed_limit < 1) return absl::InvalidArgumentError("registry missed_limit: must be positive");
  if (max_workers == 0) return absl::InvalidArgumentError("registry max_workers: must be positive");
  return absl::OkStatus();
}

WorkerRegistry::WorkerRegistry(const RegistryOptions& options, PrefixIndex& index, const Clock& clock,
                               std::function<void(const WorkerEntry&)> on_gone)
    : options_(options),
      index_(index),
      clock_(clock),
      on_gone_(std::move(on_gone)),
      table_(std::make_shared<WorkerTable>()) {}

absl::StatusOr<std::shared_ptr<WorkerEntry>> WorkerRegistry::Register(const WorkerDescription& description) {
  KVMESH_RETURN_IF_ERROR(description.Validate());
  std::shared_ptr<WorkerEntry> replaced;
  std::shared_ptr<WorkerEntry> entry;
  {
    WriterLock lock(mu_);
    const absl::Time now = clock_.Now();
    const auto it = live_.find(description.id);
    if (it != live_.end() && it->second->description().incarnation == description.incarnation) {
      it->second->Touch(now);
      return it->second;
    }
    if (it == live_.end() && live_.size() >= options_.max_workers) {
      return absl::ResourceExhaustedError(absl::StrCat("workers: more than ", options_.max_workers));
    }
    const absl::StatusOr<WorkerSlot> slot = index_.AddWorker();
    if (!slot.ok()) return slot.status();
    entry = std::make_shared<WorkerEntry>(description, *slot, now);
    if (it != live_.end()) {
      replaced = it->second;
      replaced->SetGone();
    }
    live_[description.id] = entry;
    lost_.erase(description.id);
    PublishTable();
  }
  if (replaced != nullptr) Sweep(*replaced);
  return entry;
}

absl::Status WorkerRegistry::Heartbeat(absl::string_view id, const Incarnation& incarnation,
                                       const HeartbeatLoad& load) {
  ReaderLock lock(mu_);
  const auto it = live_.find(id);
  if (it == live_.end() || it->second->description().incarnation != incarnation) {
    return absl::AbortedError("incarnation: not registered here; register again");
  }
  it->second->SetLoad(load);
  it->second->Touch(clock_.Now());
  return absl::OkStatus();
}

void WorkerRegistry::ExpireLost() {
  std::vector<std::shared_ptr<WorkerEntry>> gone;
  {
    WriterLock lock(mu_);
    const absl::Time now = clock_.Now();
    for (const auto& [id, entry] : live_) {
      const absl::Duration age = now - entry->last_heartbeat();
      const int64_t missed =
          std::max<int64_t>(0, absl::ToInt64Nanoseconds(age) / absl::ToInt64Nanoseconds(options_.heartbeat_interval));
      if (missed > entry->missed_counted) heartbeats_missed_ += missed - entry->missed_counted;
      entry->missed_counted = missed;
      if (age > options_.lost_after()) gone.push_back(entry);
    }
    absl::erase_if(lost_,
                   [&](const auto& item) { return now - item.second->last_heartbeat() > options_.forget_lost_after; });
    for (const auto& entry : gone) {
      entry->SetGone();
      live_.erase(entry->description().id);
      KeepLost(entry);
    }
    if (!gone.empty()) PublishTable();
  }
  for (const auto& entry : gone) Sweep(*entry);
}

absl::Status WorkerRegistry::OrderDrain(absl::string_view id, bool draining) {
  const std::shared_ptr<WorkerEntry> entry = Find(id);
  if (entry == nullptr) return absl::NotFoundError("worker_id: no such worker");
  entry->OrderDrain(draining);
  return absl::OkStatus();
}

std::shared_ptr<const WorkerTable> WorkerRegistry::Table() const {
  ReaderLock lock(mu_);
  return table_;
}

std::shared_ptr<WorkerEntry> WorkerRegistry::Find(absl::string_view id) const {
  ReaderLock lock(mu_);
  const auto it = live_.find(id);
  return it == live_.end() ? nullptr : it->second;
}

std::vector<std::shared_ptr<WorkerEntry>> WorkerRegistry::List() const {
  std::vector<std::shared_ptr<WorkerEntry>> out;
  {
    ReaderLock lock(mu_);
    for (const auto& [id, entry] : live_) out.push_back(entry);
    for (const auto& [id, entry] : lost_) out.push_back(entry);
  }
  std::sort(out.begin(), out.end(),
            [](const auto& a, const auto& b) { return a->description().id < b->description().id; });
  return out;
}

uint64_t WorkerRegistry::heartbeats_missed() const {
  ReaderLock lock(mu_);
  return heartbeats_missed_;
}

void WorkerRegistry::PublishTable() {
  auto table = std::make_shared<WorkerTable>();
  for (const auto& [id, entry] : live_) table->workers.push_back(entry);
  std::sort(table->workers.begin(), table->workers.end(),
            [](const auto& a, const auto& b) { return a->slot() < b->slot(); });
  for (size_t i = 0; i < table->workers.size(); ++i) {
    const uint32_t slot = table->workers[i]->slot().value();
    if (slot >= table->position_by_slot.size()) table->position_by_slot.resize(slot + 1, 0);
    table->position_by_slot[slot] = static_cast<uint32_t>(i + 1);
  }
  table_ = std::move(table);
}

void WorkerRegistry::KeepLost(const std::shared_ptr<WorkerEntry>& entry) {
  if (lost_.size() >= options_.max_workers) {
    lost_.erase(std::min_element(lost_.begin(), lost_.end(), [](const auto& a, const auto& b) {
      return a.second->last_heartbeat() < b.second->last_heartbeat();
    }));
  }
  lost_[entry->description().id] = entry;
}

void WorkerRegistry::Sweep(WorkerEntry& entry) {
  if (on_gone_) on_gone_(entry);
  MutexLock lock(entry.report_mu);
  index_.RemoveWorker(entry.slot());
}

}  // namespace kvmesh
