// Contract of every way that blocks move between workers: gRPC streaming, UCX between hosts, NCCL between GPUs.
//
// The receiver pulls. A transfer moves one ticketed span of one peer's blocks into target buffers that the caller
// reserved, in chain order:
//
//   Prepare -> Post -> (Poll | WaitForProgress)* -> finished -> (quiescent) -> Release
//                       Cancel at any time
//
// Each transfer has a deadline and ends in exactly one result. A result is not quiescence: until `quiescent`, late
// bytes may still land in the targets, so the caller keeps them reserved (contract 10). Headers and bytes are handed
// over as they came; the caller verifies them before anything becomes findable. No write to a target follows its
// `arrived` header, so a block may be published before the transfer is quiescent.
#ifndef KVMESH_WORKER_TRANSPORT_TRANSPORT_H_
#define KVMESH_WORKER_TRANSPORT_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/kv_pool_view.h"
#include "kvstore/base/status.h"
#include "kvstore/base/strong_int.h"
#include "kvstore/block/block_header.h"

namespace kvmesh {

using TransferId = StrongInt<struct TransferIdTag, uint64_t>;

struct TransferRequest {
  std::string peer_id;
  std::string peer_address;  // host:port of the peer's Worker service
  std::string ticket;        // sealed bytes, kvstore/block/ticket.h
  LayoutFingerprint layout;  // of the group's blocks
  uint32_t group = 0;        // layer group
  // One per block to take, block_bytes each. Of group 0 the ticket's leading blocks: fewer than its count end the pull
  // early. Of another group the last blocks before the end of the ticket's span, those before its first block too.
  std::vector<std::span<std::byte>> targets;
  absl::Time deadline;
};

struct TransferProgress {
  // Headers of the leading blocks whose bytes are complete in their targets; grows until finished.
  std::vector<BlockHeader> arrived;  // those after the `seen` that the caller passed
  bool finished = false;
  // Set once finished. OK: all blocks arrived. UNAVAILABLE: the peer is gone or refused for now. NOT_FOUND: it no
  // longer holds the chain. PERMISSION_DENIED: the ticket was refused. DEADLINE_EXCEEDED. CANCELLED. DATA_LOSS:
  // malformed stream.
  absl::Status result;
  bool quiescent = false;  // no further write can come
};

// Thread safe. Its destructor cancels what is left and waits until all is quiescent.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual absl::string_view name() const = 0;

  // Makes a pool's memory a possible target or source (pinning, RDMA keys). Call before the first Prepare.
  virtual absl::Status RegisterMemory(const KvPoolView& pool) = 0;
  // Takes the request in without starting it. RESOURCE_EXHAUSTED: too many transfers. INVALID_ARGUMENT: no targets.
  // UNIMPLEMENTED: this transport can't reach the peer; try the next one down.
  virtual absl::StatusOr<TransferId> Prepare(TransferRequest request) = 0;
  // Starts it; never waits for the peer.
  virtual void Post(TransferId transfer) = 0;
  // Where it stands. `seen`: how many arrived blocks the caller has taken already.
  virtual TransferProgress Poll(TransferId transfer, size_t seen) = 0;
  // The same, after waiting at most `timeout` for a block beyond `seen`, the end, or quiescence.
  virtual TransferProgress WaitForProgress(TransferId transfer, size_t seen, absl::Duration timeout) = 0;
  // Ends it with CANCELLED unless it finished already. Returns at once; quiescence follows.
  virtual void Cancel(TransferId transfer) = 0;
  // Forgets it. REQUIRES: quiescent.
  virtual void Release(TransferId transfer) = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_TRANSPORT_TRANSPORT_H_
