// Prefixes that an operator or frontend pinned by name, until a deadline.
#ifndef KVMESH_WORKER_SERVER_NAMED_PINS_H_
#define KVMESH_WORKER_SERVER_NAMED_PINS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/mutex.h"
#include "kvstore/tiers/block_store.h"

namespace kvmesh {

// Thread safe. At most kMaxNamedPins names.
class NamedPins {
 public:
  static constexpr size_t kMaxNamedPins = 1024;

  explicit NamedPins(const Clock& clock) : clock_(clock) {}

  // Replaces what the name held. RESOURCE_EXHAUSTED: too many names.
  absl::Status Set(const std::string& name, std::vector<BlockPin> pins, absl::Time deadline) {
    std::vector<BlockPin> dropped;
    MutexLock lock(mu_);
    if (!held_.contains(name) && held_.size() >= kMaxNamedPins) {
      return absl::ResourceExhaustedError("pin_id: the limit of 1024 pins is reached");
    }
    Held& held = held_[name];
    dropped = std::move(held.pins);
    held = {std::move(pins), deadline};
    return absl::OkStatus();
  }

  // False: no such name.
  bool Drop(const std::string& name) {
    Held held;
    MutexLock lock(mu_);
    const auto it = held_.find(name);
    if (it == held_.end()) return false;
    held = std::move(it->second);
    held_.erase(it);
    return true;
  }

  void DropExpired() {
    std::vector<Held> dropped;
    MutexLock lock(mu_);
    const absl::Time now = clock_.Now();
    for (auto it = held_.begin(); it != held_.end();) {
      const auto here = it++;
      if (here->second.deadline > now) continue;
      dropped.push_back(std::move(here->second));
      held_.erase(here);
    }
  }

  size_t size() const {
    MutexLock lock(mu_);
    return held_.size();
  }

 private:
  struct Held {
    std::vector<BlockPin> pins;
    absl::Time deadline;
  };
  const Clock& clock_;
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, Held> held_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_SERVER_NAMED_PINS_H_
