// Placements in flight: the load they put on workers and the blocks they will have computed. Hints with a short life,
// never hits.
#ifndef KVMESH_COORDINATOR_PLACEMENT_PLACEMENT_TABLE_H_
#define KVMESH_COORDINATOR_PLACEMENT_PLACEMENT_TABLE_H_

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "coordinator/placement/cost_model.h"
#include "kvstore/base/bytes.h"
#include "kvstore/block/block_key.h"

namespace kvmesh {

using PlacementId = FixedBytes<struct PlacementIdTag, 16>;

struct InFlightPlacement {
  WorkerSlot worker;
  double compute_seconds = 0;  // predicted
  uint64_t predicted_hit_tokens = 0;
  absl::Time placed;
  absl::Time expiry;
};

struct WorkerLoad {
  double backlog_seconds = 0;  // predicted compute time given and not yet passed
  double recent_seconds = 0;   // compute time given lately, halved every half-life
};

// Blocks of a chain that a placement in flight will have computed on a worker.
struct ExpectedPrefix {
  WorkerSlot worker;
  uint32_t blocks = 0;
};

// The load of a worker drains as time passes, in one queue, and is never more than its placements in flight predict.
// Not thread safe; a `now` before that of an earlier call counts as that.
class PlacementTable {
 public:
  explicit PlacementTable(const PlacementOptions& options) : options_(options) {}

  // Chains are remembered at few positions: block counts that are powers of two, multiples of 256, and the whole.
  // `chain`: all full blocks of the prompt; those up to `hit_blocks` need no hint. Drops the placement that would
  // expire first when the table is full. REQUIRES: a fresh id.
  void Add(const PlacementId& id, const InFlightPlacement& placement, std::span<const BlockKey> chain,
           uint32_t hit_blocks);
  // Removes the placement and what is left of its load; nullopt: unknown, or gone before.
  std::optional<InFlightPlacement> Complete(const PlacementId& id, absl::Time now);
  // Removes placements whose life has ended.
  void Expire(absl::Time now);
  // The slot's worker is gone: no load is left, and none of its placements hints any more.
  void Forget(WorkerSlot worker);

  WorkerLoad Load(WorkerSlot worker, absl::Time now) const;
  // The longest remembered prefix of `chain` beyond `known_blocks`.
  std::optional<ExpectedPrefix> FindExpected(std::span<const BlockKey> chain, uint32_t known_blocks) const;

  size_t size() const { return placements_.size(); }
  // Placements that nobody completed in time, and those dropped because the table was full. Since start.
  uint64_t expired() const { return expired_; }
  uint64_t dropped() const { return dropped_; }

 private:
  struct Entry {
    InFlightPlacement placement;
    uint64_t incarnation = 0;  // of the slot's load
    std::vector<BlockKey> hints;
  };
  // Times as of `as_of`.
  struct SlotLoad {
    uint64_t incarnation = 0;  // grows when the worker is forgotten
    double backlog = 0;
    double outstanding = 0;  // of placements in flight, whole
    double recent = 0;
    absl::Time as_of = absl::InfinitePast();
  };
  using Placements = absl::flat_hash_map<PlacementId, Entry>;

  SlotLoad& At(WorkerSlot worker);
  SlotLoad Drained(const SlotLoad& load, absl::Time now) const;
  void Remove(Placements::iterator it, absl::Time now);

  const PlacementOptions options_;
  Placements placements_;
  std::set<std::pair<absl::Time, PlacementId>> by_expiry_;
  std::vector<SlotLoad> loads_;                          // by slot
  absl::flat_hash_map<BlockKey, ExpectedPrefix> hints_;  // each listed by one entry
  uint64_t expired_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_PLACEMENT_PLACEMENT_TABLE_H_
