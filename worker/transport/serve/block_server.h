// The sending end of every transport: which requests may be served, and the verified blocks that each gets.
#ifndef KVMESH_WORKER_TRANSPORT_SERVE_BLOCK_SERVER_H_
#define KVMESH_WORKER_TRANSPORT_SERVE_BLOCK_SERVER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "kvmesh/v1/worker.pb.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"
#include "kvstore/block/ticket.h"
#include "kvstore/tiers/block_store.h"
#include "worker/transport/serve/used_tickets.h"

namespace kvmesh {

// Why a fetch was refused; counted by reason.
enum class FetchRefusal : uint8_t {
  kMalformed = 0,  // ticket or request that is not well formed, or another layout
  kForged,         // the MAC does not match
  kExpired,
  kWrongSender,    // for another worker, or an earlier start of this one
  kWrongReceiver,  // presented by another worker or incarnation than it was minted for
  kServedBefore,
  kNotHeld,
  kBusy,          // the limit of concurrent fetches
  kTicketMemory,  // the limit of remembered tickets
};
inline constexpr size_t kFetchRefusals = 9;
absl::string_view FetchRefusalName(FetchRefusal reason);

// A verified block, pinned while this holds it. Its bytes are in place where the host can address them, else a copy.
struct ServedBlock {
  BlockPin pin;
  BlockHeader header;
  std::span<const std::byte> bytes;
  std::vector<std::byte> copy;
};

class BlockServer;

// One admitted request: yields its blocks in chain order. Not thread safe; blocks that it gave may outlive it. Holds
// one of its server's places until it is destroyed.
class BlockServe {
 public:
  ~BlockServe();
  BlockServe(const BlockServe&) = delete;
  BlockServe& operator=(const BlockServe&) = delete;

  // Blocks of the whole request.
  size_t count() const { return keys_.size(); }
  // No block is left.
  bool done() const { return next_ == keys_.size(); }
  // Puts the next block into `block`, whose pin is dropped first and whose copy's memory is used again. NOT_FOUND: it
  // was evicted. RESOURCE_EXHAUSTED: the bound of pinned blocks is reached. DATA_LOSS: its bytes are not what was
  // sealed (it is erased). UNAVAILABLE: they can't be read. After an error the serve is of no use. REQUIRES: !done().
  absl::Status Next(ServedBlock& block);
  // Counts a block whose bytes were sent.
  void CountSent(const ServedBlock& block);

 private:
  friend class BlockServer;
  explicit BlockServe(BlockServer& server) : server_(server) {}
  absl::Status Verify(ServedBlock& block);

  BlockServer& server_;
  Ticket ticket_;
  BlockStore* store_ = nullptr;
  uint32_t group_ = 0;
  uint32_t first_block_ = 0;    // index in the chain of the first one
  std::vector<BlockKey> keys_;  // in the chain
  size_t next_ = 0;
};

// Thread safe. Outlives its serves and the blocks that they gave.
class BlockServer {
 public:
  struct Options {
    std::vector<BlockStore*> stores;  // by layer group; one at least
    std::string worker_id;            // this worker, as tickets name it
    Incarnation incarnation;
    TicketKey ticket_key;
    const Clock* clock = &Clock::Real();
    size_t max_serves = 32;             // at a time, over all transports
    size_t max_used_tickets = 1 << 16;  // remembered until they expire
  };
  explicit BlockServer(Options options);

  // Checks a request and uses its ticket up for the group, which happens once all but the chain has been checked: a
  // refusal by `max_serves` or `max_used_tickets` leaves it good. The serve gives the blocks that the request names
  // (FetchBlocksRequest::max_blocks), each in the device's layout. INVALID_ARGUMENT naming the field: ticket,
  // receiver_incarnation or layout_fingerprint is not well formed, the layout is not this worker's, the group is none
  // of its layers', or a group above 0 has no such number of blocks before the span's end. PERMISSION_DENIED: ticket
  // forged, for another sender, receiver or incarnation, or served before. DEADLINE_EXCEEDED: ticket expired.
  // NOT_FOUND: the chain is not held. RESOURCE_EXHAUSTED naming the limit.
  absl::StatusOr<std::unique_ptr<BlockServe>> Admit(const v1::FetchBlocksRequest& request);
  // Counts a refusal that a transport makes itself, and returns `status`.
  absl::Status Refuse(FetchRefusal reason, absl::Status status);

  // Of the largest blocks.
  size_t block_bytes() const;

  struct Counters {
    uint64_t serves_in_flight = 0;
    uint64_t served_bytes = 0;                       // payload, since start
    uint64_t served_blocks = 0;                      // since start
    std::array<uint64_t, kFetchRefusals> refused{};  // since start, by FetchRefusal
  };
  Counters counters() const;

 private:
  friend class BlockServe;

  // The ticket, after every check that needs no state.
  absl::StatusOr<Ticket> CheckRequest(const v1::FetchBlocksRequest& request);
  absl::Status UseTicket(const Ticket& ticket, uint32_t group);

  const Options options_;
  mutable Mutex mu_;
  UsedTickets used_ ABSL_GUARDED_BY(mu_);
  Counters counters_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_TRANSPORT_SERVE_BLOCK_SERVER_H_
