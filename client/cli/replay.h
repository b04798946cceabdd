// Plays a trace of block references through a cluster in this process: a real coordinator and real workers, with gRPC
// between them, under a clock that follows the trace.
#ifndef KVMESH_CLIENT_CLI_REPLAY_H_
#define KVMESH_CLIENT_CLI_REPLAY_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/trace.h"
#include "kvstore/base/status.h"
#include "worker/engine/observer.h"

namespace kvmesh {

struct ReplayOptions {
  int workers = 1;
  // Blocks of device, host and disk of each worker; nullopt: the tier does not exist, 0: unlimited.
  std::array<std::optional<uint64_t>, 3> capacity = {0, std::nullopt, std::nullopt};
  std::string policy = "lru";
  bool round_robin = false;  // else by placement
  uint64_t block_bytes = 4096;
  bool verify = false;
  std::function<void(size_t done, size_t all)> progress;  // optional
  std::function<bool()> cancelled;                        // optional; asked before each request
};

struct ReplayResult {
  uint64_t requests = 0;
  uint64_t blocks = 0;
  uint64_t hit_blocks = 0;  // at lookup, before the last-token rule
  std::array<uint64_t, kHitSources> hits{};
  uint64_t bytes_verified = 0;
  uint64_t mismatches = 0;
  double seconds = 0;
  std::map<std::string, uint64_t> requests_by_worker;
};

// Requests run in file order, each stored before the next. Hash id h is one full block of 512 tokens; its tokens and
// its bytes derive from h. INVALID_ARGUMENT naming the option; CANCELLED when told so; otherwise the status of whatever
// failed. Nothing is left behind, however it ends.
absl::StatusOr<ReplayResult> Replay(const std::vector<TraceRequest>& trace, const ReplayOptions& options);

}  // namespace kvmesh

#endif  // KVMESH_CLIENT_CLI_REPLAY_H_
