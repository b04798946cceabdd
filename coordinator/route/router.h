// From block keys to an answer: who holds them, where to run, and what to pull from whom, with tickets.
#ifndef KVMESH_COORDINATOR_ROUTE_ROUTER_H_
#define KVMESH_COORDINATOR_ROUTE_ROUTER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/placement/placer.h"
#include "coordinator/prefix_index/prefix_index.h"
#include "coordinator/registry/worker_registry.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/random.h"
#include "kvstore/base/status.h"
#include "kvstore/block/secrets.h"

namespace kvmesh {

struct RouteQuery {
  PrefixQuery prefix;
  uint32_t block_tokens = 0;    // 0: unknown, each worker's own
  uint64_t prompt_tokens = 0;   // 0: the full blocks alone
  size_t top_k = 0;             // holders to return
  absl::string_view worker_id;  // place there and nowhere else; empty: by cost
  bool lookup_only = false;     // answer without placing: nothing is remembered, sources have no tickets
};

// A span that the chosen worker should pull, and the peer's permission.
struct RouteSource {
  PullSpan span;
  const WorkerEntry* peer = nullptr;
  std::string ticket;
  uint64_t bytes = 0;
};

// Reusable: a next call overwrites it and keeps its memory. Pointers live as long as `table`.
struct RouteAnswer {
  std::shared_ptr<const WorkerTable> table;
  std::vector<PrefixMatch> matches;  // of live workers, the best `holders` first
  size_t holders = 0;
  std::vector<Candidate> candidates;  // one per worker in `table`
  Placement placement;
  std::vector<RouteSource> sources;

  const WorkerEntry& worker(size_t candidate) const { return *table->workers[candidate]; }
  const WorkerEntry& chosen() const { return worker(placement.chosen); }
  const CandidateCost& cost() const { return placement.costs[0]; }
  // Tokens of one block on the worker of a match.
  uint64_t block_tokens(const PrefixMatch& match) const {
    return table->workers[table->Position(match.worker)]->description().block_tokens;
  }
};

struct RouterOptions {
  // Below the senders' limit, so that clocks may differ by the rest.
  absl::Duration ticket_life = absl::Seconds(20);

  // INVALID_ARGUMENT naming the field.
  absl::Status Validate() const;
};

// Thread safe; takes no lock of its own.
class Router {
 public:
  // All must outlive it. `clock`: the one that workers share, for liveness and tickets. REQUIRES: valid options.
  Router(const RouterOptions& options, const PrefixIndex& index, const WorkerRegistry& registry, Placer& placer,
         const Clock& clock, RandomSource& random, const TicketKey& ticket_key)
      : options_(options),
        index_(index),
        registry_(registry),
        placer_(placer),
        clock_(clock),
        random_(random),
        ticket_key_(ticket_key) {}

  // Places the request: on a ready worker, on a warming one when there is no other, never on a draining or lost one.
  // UNAVAILABLE: no such worker.
  absl::Status Route(const RouteQuery& query, RouteAnswer& answer);

  // What `worker_id` should pull to hold all of the prefix that anybody holds, whatever it costs; nothing is placed.
  // Fills `sources`. NOT_FOUND: no such worker, or nobody holds any of the prefix.
  absl::Status PlanPrefetch(const RouteQuery& query, RouteAnswer& answer);

  // Live workers that hold the whole prefix in some set; exact copies only.
  std::vector<std::shared_ptr<WorkerEntry>> Holders(const PrefixQuery& prefix) const;

 private:
  // Matches and candidates; all of them ineligible.
  void Look(const RouteQuery& query, RouteAnswer& answer) const;
  absl::Status MarkEligible(const RouteQuery& query, RouteAnswer& answer) const;
  void MintSources(const RouteQuery& query, std::span<const PullSpan> spans, size_t receiver, RouteAnswer& answer);

  const RouterOptions options_;
  const PrefixIndex& index_;
  const WorkerRegistry& registry_;
  Placer& placer_;
  const Clock& clock_;
  RandomSource& random_;
  const TicketKey ticket_key_;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_ROUTE_ROUTER_H_
