// The one path by which a cached prefix comes back: the chain from local tiers, then siblings that are computing it,
// then peers, in chain order; then the longest boundary of it at which the other layer groups hold their windows. All
// pinned on the device.
#ifndef KVMESH_WORKER_ENGINE_RESUMER_H_
#define KVMESH_WORKER_ENGINE_RESUMER_H_

#include <span>
#include <vector>

#include "absl/time/time.h"
#include "kvstore/tiers/block_store.h"
#include "worker/engine/cache_group.h"
#include "worker/engine/group_table.h"
#include "worker/engine/observer.h"
#include "worker/engine/peer_fetcher.h"
#include "worker/engine/single_flight.h"

namespace kvmesh {

struct ResumeRequest {
  std::span<const CacheGroup> groups;  // of the sequence; a chain's store is the resumer's
  RootKey root;
  std::span<const BlockKey> keys;  // of all full blocks of the prompt
  uint64_t tokens = 0;             // of the prompt
  std::span<const PeerSource> sources;
  LossyFormats accepted;
  absl::Time deadline;          // of loads and fetches
  absl::Time sibling_deadline;  // how long to wait for a sibling that computes the next block
  bool counted = true;          // as a request of the cache; a prefetch is none
};

struct ResumeResult {
  std::vector<std::vector<HeldBlock>> held;  // by group: what going on after the boundary needs, on the device
  std::vector<HitSource> found_in;           // by block before the boundary
  SingleFlight::Claim to_compute;            // blocks from there on that this caller now computes for everybody

  // The boundary: leading blocks that need no computing.
  size_t blocks() const { return found_in.size(); }
  HitTokensBySource TokensBySource(uint32_t block_tokens) const;
  // Those of blocks of which a held copy has lossy formats.
  HitTokensBySource LossyTokensBySource(uint32_t block_tokens) const;
  // The pins of the first group, in order.
  std::vector<BlockPin> TakePins();
};

// Thread safe. Never fails: what can't be had is left to compute, and counted by reason.
class Resumer {
 public:
  // `max_claim_idle`: a caller that has sealed none of the blocks it is to compute for this long holds up no sibling.
  Resumer(BlockStore& store, PeerFetcher& fetcher, const Clock& clock, EngineObserver& observer,
          absl::Duration max_claim_idle);

  ResumeResult Resume(const ResumeRequest& request);

  const SingleFlight& computing() const { return computing_; }

 private:
  // Which sources of a request a pull has used; a ticket serves once for each group.
  struct Sources {
    std::vector<bool> chain;
    std::vector<bool> window;
  };

  // One look at all that is there. `reason`: what ended it.
  ResumeResult ResumeGroups(const ResumeRequest& request, Sources& sources, std::string& reason);
  // The chain's pins, one per found block.
  std::vector<BlockPin> ResumeChain(const ResumeRequest& request, std::vector<bool>& used, ResumeResult& result,
                                    std::string& reason);
  // Claims what is left to compute. False: a sibling computed some of it meanwhile, look again.
  bool ClaimRest(const ResumeRequest& request, ResumeResult& result);
  // The group's blocks [first, boundary) from a source that ends at the boundary, or by another fetch of them: all
  // pinned, or none.
  std::vector<BlockPin> PullWindow(const ResumeRequest& request, const CacheGroup& group, uint32_t first,
                                   uint32_t boundary, std::vector<bool>& used);
  // Whether block `i` of the request could be pinned at once.
  bool OnDevice(const ResumeRequest& request, size_t i) const;
  // Extends `result` from a peer, or waits for another fetch of the same block. False: no source helped. `failure` is
  // set by each pull: the miss reason that it gives, empty when all arrived.
  bool ExtendFromPeer(const ResumeRequest& request, std::vector<bool>& used, std::vector<BlockPin>& pins,
                      ResumeResult& result, std::string& failure);

  BlockStore& store_;
  PeerFetcher& fetcher_;
  const Clock& clock_;
  EngineObserver& observer_;
  SingleFlight fetching_;
  SingleFlight computing_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_ENGINE_RESUMER_H_
