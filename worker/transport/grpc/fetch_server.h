// The sending end of FetchBlocks: checks a ticket and streams the blocks that it names.
#ifndef KVMESH_WORKER_TRANSPORT_GRPC_FETCH_SERVER_H_
#define KVMESH_WORKER_TRANSPORT_GRPC_FETCH_SERVER_H_

#include <grpcpp/server_context.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kvmesh/v1/worker.pb.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/status.h"
#include "kvstore/block/ticket.h"
#include "kvstore/tiers/block_store.h"
#include "worker/transport/grpc/block_pieces.h"
#include "worker/transport/grpc/used_tickets.h"

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

// Thread safe; each Serve blocks its caller until the last piece is written.
class FetchServer {
 public:
  struct Options {
    BlockStore* store = nullptr;  // required
    std::string worker_id;        // this worker, as tickets name it
    Incarnation incarnation;
    TicketKey ticket_key;
    const Clock* clock = &Clock::Real();
    size_t max_serves = 32;               // at a time
    size_t max_used_tickets = 1 << 16;    // remembered until they expire
    size_t piece_bytes = kMaxPieceBytes;  // 1 to kMaxPieceBytes
  };
  explicit FetchServer(Options options);

  // Checks the request and writes its blocks in chain order, `max_blocks` at most, each in the device's layout,
  // verified and pinned only while it is written. A ticket is used up once all but the chain has been checked, so a
  // refusal by `max_serves` or `max_used_tickets` leaves it good. INVALID_ARGUMENT naming the field: ticket,
  // receiver_incarnation or layout_fingerprint is not well formed, or the layout is not this worker's.
  // PERMISSION_DENIED: ticket forged, for another sender, receiver or incarnation, or served before. DEADLINE_EXCEEDED:
  // ticket expired. NOT_FOUND: the chain is not held in an accepted format. RESOURCE_EXHAUSTED naming the limit. After
  // some blocks also: NOT_FOUND: the next one was evicted. DATA_LOSS: a block's bytes are not what was sealed (it is
  // erased). UNAVAILABLE: they can't be read. CANCELLED: `write` returned false. A pin is held while `write` blocks: it
  // must end with the call's deadline.
  absl::Status Serve(const v1::FetchBlocksRequest& request, const PieceWriter& write);
  // The same for a handler of the synchronous gRPC server. INVALID_ARGUMENT also for a call without a deadline.
  absl::Status Serve(const grpc::ServerContext& context, const v1::FetchBlocksRequest& request,
                     const PieceWriter& write);

  struct Counters {
    uint64_t serves_in_flight = 0;
    uint64_t served_bytes = 0;                       // payload, since start
    uint64_t served_blocks = 0;                      // since start
    std::array<uint64_t, kFetchRefusals> refused{};  // since start, by FetchRefusal
  };
  Counters counters() const;

 private:
  absl::Status Refuse(FetchRefusal reason, absl::Status status);
  absl::Status ServeAdmitted(const v1::FetchBlocksRequest& request, const PieceWriter& write);
  // The ticket, after every check that needs no state.
  absl::StatusOr<Ticket> CheckRequest(const v1::FetchBlocksRequest& request);
  absl::Status UseTicket(const Ticket& ticket);
  absl::Status Stream(const Ticket& ticket, std::span<const BlockKey> keys, const PieceWriter& write);
  struct Sealed {
    BlockHeader header;
    std::span<const std::byte> bytes;
  };
  // A pinned block in the device's layout, verified: in place where possible, else copied into `buffer`.
  absl::StatusOr<Sealed> Verified(const BlockPin& pin, std::vector<std::byte>& buffer);

  const Options options_;
  PieceBuffers buffers_;
  mutable Mutex mu_;
  UsedTickets used_ ABSL_GUARDED_BY(mu_);
  Counters counters_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_TRANSPORT_GRPC_FETCH_SERVER_H_
