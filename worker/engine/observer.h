// What the engine tells whoever keeps the metrics. All in tokens, bytes and seconds; called without locks held.
#ifndef KVMESH_WORKER_ENGINE_OBSERVER_H_
#define KVMESH_WORKER_ENGINE_OBSERVER_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kvstore/pool/prefix_map.h"

namespace kvmesh {

// "ok", "unavailable", ...: a status code as a label.
std::string StatusLabel(const absl::Status& status);

// Where a block of a resumed prefix was found.
enum class HitSource : uint8_t { kDevice = 0, kHost = 1, kDisk = 2, kPeer = 3 };
inline constexpr size_t kHitSources = 4;
constexpr HitSource SourceOf(Tier tier) { return static_cast<HitSource>(tier); }
static_assert(SourceOf(Tier::kDevice) == HitSource::kDevice && SourceOf(Tier::kHost) == HitSource::kHost &&
              SourceOf(Tier::kDisk) == HitSource::kDisk);
// Tokens by HitSource.
using HitTokensBySource = std::array<uint64_t, kHitSources>;

// Thread safe.
class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  // One resume ended. `requested`: full-block tokens asked for.
  virtual void OnResume(uint64_t requested, const HitTokensBySource& hits, absl::Duration took) = 0;
  // Of the tokens that a resume found, those in copies that are not exact.
  virtual void OnLossyHits(const HitTokensBySource& hits) = 0;
  // `tokens` were not found for `reason` (a MissReason name, or "fetch_<status>").
  virtual void OnMiss(absl::string_view reason, uint64_t tokens) = 0;
  // One pull from `peer` ended; `transport`: "none" when no transport took it.
  virtual void OnFetch(absl::string_view peer, absl::string_view transport, const absl::Status& outcome, uint64_t bytes,
                       absl::Duration took) = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_ENGINE_OBSERVER_H_
