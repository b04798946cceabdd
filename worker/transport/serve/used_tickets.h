// Ids of tickets that were served, so that none is served twice for one layer group.
#ifndef KVMESH_WORKER_TRANSPORT_SERVE_USED_TICKETS_H_
#define KVMESH_WORKER_TRANSPORT_SERVE_USED_TICKETS_H_

#include <cstddef>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "kvstore/block/ticket.h"

namespace kvmesh {

// Remembers each id until its ticket expires; an expired ticket no longer opens. Not thread safe.
class UsedTickets {
 public:
  explicit UsedTickets(size_t capacity) : capacity_(capacity) {}

  enum class Answer { kFresh, kUsed, kFull };
  // kFresh: the id is now used. kFull: `capacity` ids have not expired; this one was not taken in.
  Answer Use(const TicketId& ticket, uint32_t group, absl::Time expiry, absl::Time now) {
    const Id id{ticket, group};
    while (!by_expiry_.empty() && by_expiry_.top().first <= now) {
      ids_.erase(by_expiry_.top().second);
      by_expiry_.pop();
    }
    if (ids_.contains(id)) return Answer::kUsed;
    if (ids_.size() >= capacity_) return Answer::kFull;
    ids_.insert(id);
    by_expiry_.emplace(expiry, id);
    return Answer::kFresh;
  }
  size_t size() const { return ids_.size(); }

 private:
  using Id = std::pair<TicketId, uint32_t>;
  using Entry = std::pair<absl::Time, Id>;

  const size_t capacity_;
  absl::flat_hash_set<Id> ids_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> by_expiry_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_TRANSPORT_SERVE_USED_TICKETS_H_
