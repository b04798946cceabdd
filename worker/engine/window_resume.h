// The part of a resume that layer groups with a window add: where, at most, a sequence can go on.
#ifndef KVMESH_WORKER_ENGINE_WINDOW_RESUME_H_
#define KVMESH_WORKER_ENGINE_WINDOW_RESUME_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "worker/engine/cache_group.h"
#include "worker/engine/group_table.h"
#include "worker/engine/observer.h"

namespace kvmesh {

struct WindowRequest {
  std::span<const CacheGroup> groups;  // those without a window are left alone
  std::span<const BlockKey> keys;      // the chain's, of all full blocks of the prompt
  uint64_t tokens = 0;                 // of the prompt
  size_t limit = 0;                    // the boundary is no later, in blocks
  LossyFormats accepted;
  absl::Time deadline;  // of promotions
  // Gets the group's blocks [first, boundary) from a peer, as far as it can; pins those it published, in order.
  std::function<std::vector<BlockPin>(const CacheGroup& group, uint32_t first, uint32_t boundary)> pull;
};

struct WindowResume {
  size_t boundary = 0;                       // in blocks; 0 when no later one is covered
  std::vector<std::vector<HeldBlock>> held;  // by group: what BlocksToContinue says
  std::vector<HitSource> found_in;           // by block before the boundary; of one that is not needed: as the next one
};

// The longest boundary that every window covers, with what it needs pinned on the device. Needed blocks that turn out
// to be lost make it look further down.
WindowResume ResumeWindows(const WindowRequest& request);

}  // namespace kvmesh

#endif  // KVMESH_WORKER_ENGINE_WINDOW_RESUME_H_
