// A bounded number of calls that wait for something, and what they hold.
#ifndef KVMESH_COORDINATOR_SERVER_PLACES_H_
#define KVMESH_COORDINATOR_SERVER_PLACES_H_

#include <prometheus/counter.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"

namespace kvmesh {

struct PlacesOptions {
  std::string what;        // waits here; begins the refusals' message
  size_t max_calls = 0;    // at once
  uint64_t max_bytes = 0;  // that their requests hold together; a lone call may hold more
};

// Thread safe. Never waits: who finds no place is refused.
class Places {
 public:
  // `refused` counts the refusals, and must outlive it.
  Places(PlacesOptions options, prometheus::Counter& refused) : options_(std::move(options)), refused_(refused) {}

  // Takes a place, until Leave with the same `bytes`. RESOURCE_EXHAUSTED naming the limit; counted.
  absl::Status Enter(uint64_t bytes) {
    MutexLock lock(mu_);
    std::string limit;
    if (calls_ >= options_.max_calls) limit = absl::StrCat(options_.max_calls, " calls");
    if (calls_ > 0 && bytes_ + bytes > options_.max_bytes) limit = absl::StrCat(options_.max_bytes, " bytes");
    if (!limit.empty()) {
      refused_.Increment();
      return absl::ResourceExhaustedError(absl::StrCat(options_.what, ": the limit of ", limit, " is reached"));
    }
    ++calls_;
    bytes_ += bytes;
    return absl::OkStatus();
  }
  void Leave(uint64_t bytes) {
    MutexLock lock(mu_);
    --calls_;
    bytes_ -= bytes;
  }

 private:
  const PlacesOptions options_;
  prometheus::Counter& refused_;
  Mutex mu_;
  size_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_PLACES_H_
