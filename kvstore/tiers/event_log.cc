#include "kvstore/tiers/event_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvmesh {

uint64_t EventLog::Append(StoreEvent event) {
  uint64_t sequence;
  {
    MutexLock lock(mu_);
    event.sequence = sequence = ++last_;
    events_.push_back(std::move(event));
    if (events_.size() > capacity_) events_.pop_front();
  }
  changed_.NotifyAll();
  return sequence;
}

uint64_t EventLog::last() const {
  MutexLock lock(mu_);
  return last_;
}

absl::StatusOr<std::vector<StoreEvent>> EventLog::ReadAfter(uint64_t cursor, size_t limit) const {
  MutexLock lock(mu_);
  std::vector<StoreEvent> out;
  if (cursor >= last_) return out;
  const uint64_t first = last_ - events_.size() + 1;
  if (cursor + 1 < first) {
    return absl::OutOfRangeError(absl::StrCat("event log: events ", cursor + 1, " to ", first - 1, " were dropped"));
  }
  const size_t begin = static_cast<size_t>(cursor + 1 - first);
  const size_t count = std::min(limit, events_.size() - begin);
  out.assign(events_.begin() + static_cast<ptrdiff_t>(begin), events_.begin() + static_cast<ptrdiff_t>(begin + count));
  return out;
}

void EventLog::WaitAfter(uint64_t cursor, absl::Duration timeout) const {
  MutexLock lock(mu_);
  const uint64_t wakes = wakes_;
  const absl::Time deadline = absl::Now() + timeout;
  while (last_ <= cursor && wakes_ == wakes) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return;
    changed_.WaitFor(lock, left);
  }
}

void EventLog::Wake() {
  {
    MutexLock lock(mu_);
    ++wakes_;
  }
  changed_.NotifyAll();
}

}  // namespace kvmesh
