// Generation on a cluster: route, run on the chosen worker, report back.
#ifndef KVMESH_CLIENT_GENERATE_H_
#define KVMESH_CLIENT_GENERATE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/client.h"

namespace kvmesh {

struct ClusterGenerateRequest {
  std::vector<uint32_t> tokens;  // one of tokens and text
  std::string text;
  uint32_t max_tokens = 0;
  // As in v1::GenerateRequest.
  uint32_t samples = 1;
  uint32_t speculate = 0;
  double temperature = 0;
  uint32_t top_k = 0;
  double top_p = 0;
  uint64_t seed = 0;
  bool no_cache = false;
  std::string tenant;  // ignored by servers under TLS
  std::string cache_salt;
  std::string worker_id;  // run there; empty: the coordinator chooses
  LossyFormats accepted;  // in the prefix that it resumes
  absl::Duration timeout = absl::Seconds(60);
  std::function<void(uint32_t id, const std::string& text)> on_token;  // optional; of sample 0
};

struct GeneratedSample {
  std::vector<uint32_t> tokens;
  std::string text;
};

struct ClusterGenerateResult {
  std::string worker_id;
  uint64_t prompt_tokens = 0;
  uint64_t computed_tokens = 0;  // not computed again: resumed
  v1::HitTokens hits;
  std::vector<uint32_t> tokens;  // of sample 0
  std::string text;
  std::vector<GeneratedSample> others;  // samples 1, 2, ...
  uint64_t draft_tokens = 0;
  uint64_t accepted_drafts = 0;
  absl::Duration time_to_first_token;
  absl::Duration total;
  v1::RouteResponse route;
};

// The identity of the cluster's model, from any worker that has one. NOT_FOUND: none has.
absl::StatusOr<CacheIdentity> ClusterModelIdentity(Client& client);

// Routes and runs once more when the chosen worker is UNAVAILABLE before its first token; until the coordinator has
// noticed that a worker is gone, that may name it again. Other errors are the servers'.
absl::StatusOr<ClusterGenerateResult> GenerateOnCluster(Client& client, const ClusterGenerateRequest& request);

}  // namespace kvmesh

#endif  // KVMESH_CLIENT_GENERATE_H_
