#include "coordinator/placement/placement_table.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvmesh {
namespace {

constexpr uint32_t kHintStep = 256;

// The remembered block count below `blocks`, 0 when there is none.
uint32_t HintBelow(uint32_t blocks) {
  if (blocks > kHintStep) return (blocks - 1) / kHintStep * kHintStep;
  return blocks <= 1 ? 0 : std::bit_floor(blocks - 1);
}

}  // namespace

PlacementTable::SlotLoad& PlacementTable::At(WorkerSlot worker) {
  if (worker.value() >= loads_.size()) loads_.resize(worker.value() + 1);
  return loads_[worker.value()];
}

PlacementTable::SlotLoad PlacementTable::Drained(const SlotLoad& load, absl::Time now) const {
  SlotLoad out = load;
  if (now <= load.as_of) return out;
  const absl::Duration passed = now - load.as_of;
  out.backlog = std::max(0.0, load.backlog - absl::ToDoubleSeconds(passed));
  if (load.recent > 0) out.recent *= std::exp2(-absl::FDivDuration(passed, options_.recent_half_life));
  out.as_of = now;
  return out;
}

void PlacementTable::Add(const PlacementId& id, const InFlightPlacement& placement, std::span<const BlockKey> chain,
                         uint32_t hit_blocks) {
  if (placements_.size() >= options_.max_in_flight) {
    ++dropped_;
    Remove(placements_.find(by_expiry_.begin()->second), placement.placed);
  }
  SlotLoad& load = At(placement.worker);
  load = Drained(load, placement.placed);
  load.as_of = std::max(load.as_of, placement.placed);
  load.backlog += placement.compute_seconds;
  load.outstanding += placement.compute_seconds;
  load.recent += placement.compute_seconds;

  Entry& entry = placements_[id];
  entry.placement = placement;
  entry.incarnation = load.incarnation;
  for (auto blocks = static_cast<uint32_t>(chain.size()); blocks > hit_blocks; blocks = HintBelow(blocks)) {
    const BlockKey& key = chain[blocks - 1];
    if (hints_.try_emplace(key, ExpectedPrefix{placement.worker, blocks}).second) entry.hints.push_back(key);
  }
  by_expiry_.emplace(placement.expiry, id);
}

std::optional<InFlightPlacement> PlacementTable::Complete(const PlacementId& id, absl::Time now) {
  const auto it = placements_.find(id);
  if (it == placements_.end()) return std::nullopt;
  const InFlightPlacement placement = it->second.placement;
  Remove(it, now);
  return placement;
}

void PlacementTable::Expire(absl::Time now) {
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    ++expired_;
    Remove(placements_.find(by_expiry_.begin()->second), now);
  }
}

void PlacementTable::Forget(WorkerSlot worker) {
  const uint64_t incarnation = At(worker).incarnation;
  At(worker) = SlotLoad{.incarnation = incarnation + 1};
  for (auto& [id, entry] : placements_) {
    if (entry.placement.worker != worker || entry.incarnation != incarnation) continue;
    for (const BlockKey& key : entry.hints) hints_.erase(key);
    entry.hints.clear();
  }
}

WorkerLoad PlacementTable::Load(WorkerSlot worker, absl::Time now) const {
  if (worker.value() >= loads_.size()) return {};
  const SlotLoad load = Drained(loads_[worker.value()], now);
  return {.backlog_seconds = load.backlog, .recent_seconds = load.recent};
}

std::optional<ExpectedPrefix> PlacementTable::FindExpected(std::span<const BlockKey> chain,
                                                           uint32_t known_blocks) const {
  if (hints_.empty()) return std::nullopt;
  for (auto blocks = static_cast<uint32_t>(chain.size()); blocks > known_blocks; blocks = HintBelow(blocks)) {
    const auto it = hints_.find(chain[blocks - 1]);
    if (it != hints_.end()) return it->second;
  }
  return std::nullopt;
}

void PlacementTable::Remove(Placements::iterator it, absl::Time now) {
  const Entry& entry = it->second;
  for (const BlockKey& key : entry.hints) hints_.erase(key);
  SlotLoad& load = At(entry.placement.worker);
  if (load.incarnation == entry.incarnation) {
    load = Drained(load, now);
    load.outstanding = std::max(0.0, load.outstanding - entry.placement.compute_seconds);
    load.backlog = std::min(load.backlog, load.outstanding);
  }
  by_expiry_.erase({entry.placement.expiry, it->first});
  placements_.erase(it);
}

}  // namespace kvmesh
