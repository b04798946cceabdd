#include "worker/report/event_feed.h"

#include <algorithm>
#include <vector>

#include "worker/report/event_messages.h"

namespace kvmesh {

void EventFeed::Seek(uint64_t cursor) {
  cursor_ = cursor;
  changes_ = 0;
  digest_under_way_ = false;
}

EventFeed::Outcome EventFeed::Next(v1::EventBatch& batch) {
  if (cursor_ > store_.events().last()) return Outcome::kFellBehind;
  const absl::StatusOr<std::vector<StoreEvent>> events = store_.events().ReadAfter(cursor_, options_.batch_events);
  if (!events.ok()) return Outcome::kFellBehind;
  batch.Clear();
  for (const StoreEvent& event : *events) {
    ToMessage(event, *batch.add_events());
    Track(event);
  }
  AppendDigestsWhenDue();
  if (events->empty()) return Outcome::kNothing;
  cursor_ = events->back().sequence;
  return Outcome::kEvents;
}

void EventFeed::Track(const StoreEvent& event) {
  if (event.kind == StoreEvent::Kind::kDigest) {
    changes_ = 0;
    digest_under_way_ = false;
  } else if (changes_++ == 0) {
    first_change_ = SteadyClock::now();
  }
}

void EventFeed::AppendDigestsWhenDue() {
  if (changes_ == 0 || digest_under_way_) return;
  const bool due = changes_ >= options_.digest_events ||
                   SteadyClock::now() - first_change_ >= absl::ToChronoNanoseconds(options_.digest_interval);
  if (!due) return;
  store_.AppendDigests();
  digest_under_way_ = true;
}

absl::Duration EventFeed::UntilDigest() const {
  if (changes_ == 0 || digest_under_way_) return absl::InfiniteDuration();
  const absl::Duration since = absl::FromChrono(SteadyClock::now() - first_change_);
  return std::max(options_.digest_interval - since, absl::ZeroDuration());
}

}  // namespace kvmesh
