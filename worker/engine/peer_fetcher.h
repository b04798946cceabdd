// Pulls one span of blocks of a layer group from a peer into the device pool, verifies and publishes block by block.
#ifndef KVMESH_WORKER_ENGINE_PEER_FETCHER_H_
#define KVMESH_WORKER_ENGINE_PEER_FETCHER_H_

#include <cstdint>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/mutex.h"
#include "kvstore/tiers/block_store.h"
#include "worker/engine/observer.h"
#include "worker/transport/transport.h"

namespace kvmesh {

// A span that a peer is said to hold, and the permission to pull it.
struct PeerSource {
  uint32_t first_block = 0;  // index in the chain
  uint32_t block_count = 0;
  std::string peer_id;
  std::string peer_address;
  std::string ticket;
};

// The blocks to pull, and where they go.
struct FetchSpan {
  BlockStore* store = nullptr;  // of the group
  uint32_t group = 0;           // of another than 0: the blocks end where the source's span does
  RootKey root;
  BlockKey parent;                 // in the chain, of the first block; block 0: the root
  std::span<const BlockKey> keys;  // in the chain
  uint32_t first_block = 0;        // index in the chain; of group 0 the source's
};

// Thread safe.
class PeerFetcher {
 public:
  // `transports` in order of preference; a peer that one can't reach is tried with the next. None is owned.
  PeerFetcher(std::vector<Transport*> transports, const Clock& clock, EngineObserver& observer);
  // Waits until every transfer is quiescent.
  ~PeerFetcher();

  struct Result {
    std::vector<BlockPin> pins;  // the leading blocks of the span that were published
    absl::Status status;         // why it stopped, when short
  };
  // A block whose header or bytes are wrong ends the pull with DATA_LOSS and is never findable.
  Result Fetch(const FetchSpan& span, const PeerSource& source, absl::Time deadline,
               LossyFormats accepted = LossyFormats());

  // Frees slots whose transfers became quiescent. Call now and then; Fetch does too.
  void SweepQuarantine();
  uint64_t quarantined_blocks() const;
  uint64_t transfers_in_flight() const;

 private:
  struct Quarantined {
    Transport* transport;
    TransferId transfer;
    std::vector<PrivateBlock> blocks;
  };

  absl::StatusOr<std::pair<Transport*, TransferId>> Start(const FetchSpan& span, const PeerSource& source,
                                                          std::span<const PrivateBlock> targets, absl::Time deadline);
  // Publishes what arrives, in order, until the end.
  absl::Status Receive(Transport& transport, TransferId transfer, const FetchSpan& span,
                       std::vector<PrivateBlock>& targets, absl::Time deadline, LossyFormats accepted,
                       std::vector<BlockPin>& pins);
  void Finish(Transport& transport, TransferId transfer, std::vector<PrivateBlock> targets);

  const std::vector<Transport*> transports_;
  const Clock& clock_;
  EngineObserver& observer_;
  mutable Mutex mu_;
  std::list<Quarantined> quarantine_ ABSL_GUARDED_BY(mu_);
  uint64_t in_flight_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_ENGINE_PEER_FETCHER_H_
