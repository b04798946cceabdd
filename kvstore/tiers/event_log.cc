#include "kvstore/tiers/event_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvmesh {

AppendHook::~AppendHook() {
  if (log_ == nullptr) return;
  MutexLock lock(log_->mu_);
  log_->hooks_.erase(id_);
}

uint64_t EventLog::Append(StoreEvent event) {
  MutexLock lock(mu_);
  event.sequence = ++last_;
  events_.push_back(std::move(event));
  if (events_.size() > capacity_) events_.pop_front();
  for (const auto& [id, on_append] : hooks_) on_append();
  return last_;
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

AppendHook EventLog::OnAppend(std::function<void()> on_append) {
  MutexLock lock(mu_);
  const uint64_t id = next_hook_++;
  hooks_.emplace(id, std::move(on_append));
  return AppendHook(this, id);
}

}  // namespace kvmesh
