#include "worker/transport/grpc/fetch_server.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/base/check.h"

namespace kvmesh {
namespace {

FetchServer::Options Checked(FetchServer::Options options) {
  KVMESH_CHECK(options.store != nullptr, "a fetch server without a block store");
  KVMESH_CHECK(options.piece_bytes >= 1 && options.piece_bytes <= kMaxPieceBytes, "piece_bytes out of range");
  return options;
}

}  // namespace

absl::string_view FetchRefusalName(FetchRefusal reason) {
  switch (reason) {
    case FetchRefusal::kMalformed:
      return "malformed";
    case FetchRefusal::kForged:
      return "forged";
    case FetchRefusal::kExpired:
      return "expired";
    case FetchRefusal::kWrongSender:
      return "wrong_sender";
    case FetchRefusal::kWrongReceiver:
      return "wrong_receiver";
    case FetchRefusal::kServedBefore:
      return "served_before";
    case FetchRefusal::kNotHeld:
      return "not_held";
    case FetchRefusal::kBusy:
      return "busy";
    case FetchRefusal::kTicketMemory:
      return "ticket_memory";
  }
  return "unknown";
}

FetchServer::FetchServer(Options options)
    : options_(Checked(std::move(options))),
      buffers_(std::min(options_.piece_bytes, static_cast<size_t>(options_.store->device().layout().block_bytes))),
      used_(options_.max_used_tickets) {}

absl::Status FetchServer::Refuse(FetchRefusal reason, absl::Status status) {
  MutexLock lock(mu_);
  ++counters_.refused[static_cast<size_t>(reason)];
  return status;
}

absl::Status FetchServer::Serve(const v1::FetchBlocksRequest& request, const PieceWriter& write) {
  {
    MutexLock lock(mu_);
    if (counters_.serves_in_flight >= options_.max_serves) {
      ++counters_.refused[static_cast<size_t>(FetchRefusal::kBusy)];
      return absl::ResourceExhaustedError(
          absl::StrCat("fetches served: the limit of ", options_.max_serves, " is reached"));
    }
    ++counters_.serves_in_flight;
  }
  absl::Status status = ServeAdmitted(request, write);
  MutexLock lock(mu_);
  --counters_.serves_in_flight;
  return status;
}

absl::Status FetchServer::Serve(const grpc::ServerContext& context, const v1::FetchBlocksRequest& request,
                                const PieceWriter& write) {
  if (context.deadline() == std::chrono::system_clock::time_point::max()) {
    return Refuse(FetchRefusal::kMalformed, absl::InvalidArgumentError("deadline: the call has none"));
  }
  return Serve(request, write);
}

absl::Status FetchServer::ServeAdmitted(const v1::FetchBlocksRequest& request, const PieceWriter& write) {
  const absl::StatusOr<Ticket> ticket = CheckRequest(request);
  if (!ticket.ok()) return ticket.status();
  KVMESH_RETURN_IF_ERROR(UseTicket(*ticket));
  const absl::StatusOr<std::vector<BlockKey>> keys =
      options_.store->ChainKeys(ticket->root, ticket->last_key, ticket->first_block, ticket->block_count);
  if (!keys.ok()) return Refuse(FetchRefusal::kNotHeld, keys.status());
  const size_t wanted = request.max_blocks() == 0 ? keys->size() : std::min<size_t>(keys->size(), request.max_blocks());
  return Stream(*ticket, std::span(*keys).first(wanted), write);
}

absl::StatusOr<Ticket> FetchServer::CheckRequest(const v1::FetchBlocksRequest& request) {
  absl::StatusOr<Ticket> ticket = OpenTicket(request.ticket(), options_.ticket_key, options_.clock->Now());
  if (absl::IsPermissionDenied(ticket.status())) return Refuse(FetchRefusal::kForged, ticket.status());
  if (absl::IsDeadlineExceeded(ticket.status())) return Refuse(FetchRefusal::kExpired, ticket.status());
  if (!ticket.ok()) return Refuse(FetchRefusal::kMalformed, ticket.status());

  if (ticket->sender != options_.worker_id || ticket->sender_incarnation != options_.incarnation) {
    return Refuse(FetchRefusal::kWrongSender, absl::PermissionDeniedError("ticket: for another sender"));
  }
  const std::optional<Incarnation> receiver = Incarnation::FromBytes(request.receiver_incarnation());
  if (!receiver) {
    return Refuse(FetchRefusal::kMalformed, absl::InvalidArgumentError("receiver_incarnation: must be 16 bytes"));
  }
  if (ticket->receiver != request.receiver_id() || ticket->receiver_incarnation != *receiver) {
    return Refuse(FetchRefusal::kWrongReceiver, absl::PermissionDeniedError("ticket: for another receiver"));
  }
  const std::optional<LayoutFingerprint> layout = LayoutFingerprint::FromBytes(request.layout_fingerprint());
  if (!layout || *layout != options_.store->layout_fingerprint()) {
    return Refuse(FetchRefusal::kMalformed, absl::InvalidArgumentError("layout_fingerprint: not this worker's"));
  }
  return ticket;
}

absl::Status FetchServer::UseTicket(const Ticket& ticket) {
  const absl::Time now = options_.clock->Now();
  UsedTickets::Answer answer;
  {
    MutexLock lock(mu_);
    answer = used_.Use(ticket.id, ticket.expiry, now);
  }
  switch (answer) {
    case UsedTickets::Answer::kFresh:
      break;
    case UsedTickets::Answer::kUsed:
      return Refuse(FetchRefusal::kServedBefore, absl::PermissionDeniedError("ticket: served before"));
    case UsedTickets::Answer::kFull:
      return Refuse(FetchRefusal::kTicketMemory,
                    absl::ResourceExhaustedError(
                        absl::StrCat("used tickets: the limit of ", options_.max_used_tickets, " is reached")));
  }
  return absl::OkStatus();
}

absl::Status FetchServer::Stream(const Ticket& ticket, std::span<const BlockKey> keys, const PieceWriter& write) {
  std::vector<std::byte> buffer;
  for (size_t i = 0; i < keys.size(); ++i) {
    // One block at a time, so that a long span never pins much of a tier.
    const absl::StatusOr<std::vector<BlockPin>> pin = options_.store->PinForRead(
        ticket.root, keys[i], ticket.first_block + static_cast<uint32_t>(i), 1, ticket.accepted);
    if (!pin.ok()) {
      const bool busy = absl::IsResourceExhausted(pin.status());
      return i == 0 ? Refuse(busy ? FetchRefusal::kBusy : FetchRefusal::kNotHeld, pin.status()) : pin.status();
    }
    const absl::StatusOr<Sealed> block = Verified(pin->front(), buffer);
    if (!block.ok()) return block.status();
    if (!WriteBlock(block->header, block->bytes, buffers_, write)) {
      return absl::CancelledError("the receiver is gone");
    }
    MutexLock lock(mu_);
    counters_.served_bytes += block->bytes.size();
    ++counters_.served_blocks;
  }
  return absl::OkStatus();
}

absl::StatusOr<FetchServer::Sealed> FetchServer::Verified(const BlockPin& pin, std::vector<std::byte>& buffer) {
  const std::span<const std::byte> in_place = options_.store->BytesInPlace(pin);
  if (!in_place.empty() && VerifyBlock(pin.header(), in_place).ok()) return Sealed{pin.header(), in_place};
  // Not addressable, in another format, or wrong: Read says which, and erases a wrong copy.
  buffer.resize(static_cast<size_t>(options_.store->device().layout().block_bytes));
  const absl::StatusOr<BlockHeader> read = options_.store->Read(pin, buffer);
  if (absl::IsDataLoss(read.status())) return read.status();
  if (!read.ok()) return absl::UnavailableError(read.status().message());
  return Sealed{*read, buffer};
}

FetchServer::Counters FetchServer::counters() const {
  MutexLock lock(mu_);
  return counters_;
}

}  // namespace kvmesh
