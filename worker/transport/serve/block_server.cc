#include "worker/transport/serve/block_server.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/base/check.h"

namespace kvmesh {

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

BlockServer::BlockServer(Options options) : options_(std::move(options)), used_(options_.max_used_tickets) {
  KVMESH_CHECK(!options_.stores.empty(), "a block server without a block store");
}

size_t BlockServer::block_bytes() const {
  int64_t bytes = 0;
  for (const BlockStore* store : options_.stores) bytes = std::max(bytes, store->device().layout().block_bytes);
  return static_cast<size_t>(bytes);
}

absl::Status BlockServer::Refuse(FetchRefusal reason, absl::Status status) {
  MutexLock lock(mu_);
  ++counters_.refused[static_cast<size_t>(reason)];
  return status;
}

absl::StatusOr<std::unique_ptr<BlockServe>> BlockServer::Admit(const v1::FetchBlocksRequest& request) {
  {
    MutexLock lock(mu_);
    if (counters_.serves_in_flight >= options_.max_serves) {
      ++counters_.refused[static_cast<size_t>(FetchRefusal::kBusy)];
      return absl::ResourceExhaustedError(
          absl::StrCat("fetches served: the limit of ", options_.max_serves, " is reached"));
    }
    ++counters_.serves_in_flight;
  }
  std::unique_ptr<BlockServe> serve(new BlockServe(*this));  // gives the place back when it goes
  absl::StatusOr<Ticket> ticket = CheckRequest(request);
  if (!ticket.ok()) return ticket.status();
  KVMESH_RETURN_IF_ERROR(UseTicket(*ticket, request.group()));
  serve->store_ = options_.stores[request.group()];
  serve->group_ = request.group();
  const uint32_t end = ticket->first_block + ticket->block_count;
  serve->first_block_ = request.group() == 0 ? ticket->first_block : end - request.max_blocks();
  absl::StatusOr<std::vector<BlockKey>> keys = serve->store_->ChainKeys(
      ticket->root, ticket->last_key, serve->first_block_, end - serve->first_block_, request.group());
  if (!keys.ok()) return Refuse(FetchRefusal::kNotHeld, keys.status());
  serve->ticket_ = *std::move(ticket);
  serve->keys_ = *std::move(keys);
  if (request.max_blocks() != 0 && request.max_blocks() < serve->keys_.size()) {
    serve->keys_.resize(request.max_blocks());
  }
  return serve;
}

absl::StatusOr<Ticket> BlockServer::CheckRequest(const v1::FetchBlocksRequest& request) {
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
  if (request.group() >= options_.stores.size()) {
    return Refuse(FetchRefusal::kMalformed,
                  absl::InvalidArgumentError(
                      absl::StrCat("group: ", request.group(), ", this worker's are below ", options_.stores.size())));
  }
  if (!layout || *layout != options_.stores[request.group()]->layout_fingerprint()) {
    return Refuse(FetchRefusal::kMalformed, absl::InvalidArgumentError("layout_fingerprint: not this worker's"));
  }
  const uint32_t end = ticket->first_block + ticket->block_count;
  if (request.group() > 0 && (request.max_blocks() == 0 || request.max_blocks() > end)) {
    return Refuse(FetchRefusal::kMalformed,
                  absl::InvalidArgumentError(
                      absl::StrCat("max_blocks: ", request.max_blocks(), " of a group above 0, must be 1 to ", end)));
  }
  return ticket;
}

absl::Status BlockServer::UseTicket(const Ticket& ticket, uint32_t group) {
  const absl::Time now = options_.clock->Now();
  UsedTickets::Answer answer;
  {
    MutexLock lock(mu_);
    answer = used_.Use(ticket.id, group, ticket.expiry, now);
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

BlockServer::Counters BlockServer::counters() const {
  MutexLock lock(mu_);
  return counters_;
}

BlockServe::~BlockServe() {
  MutexLock lock(server_.mu_);
  --server_.counters_.serves_in_flight;
}

absl::Status BlockServe::Next(ServedBlock& block) {
  KVMESH_CHECK(!done(), "a serve is asked for more blocks than it has");
  block.pin.Reset();
  // One block at a time, so that a long span never pins much of a tier.
  absl::StatusOr<std::vector<BlockPin>> pins = store_->PinForRead(
      ticket_.root, keys_[next_], first_block_ + static_cast<uint32_t>(next_), 1, ticket_.accepted, group_);
  if (!pins.ok()) {
    const bool busy = absl::IsResourceExhausted(pins.status());
    if (next_ > 0) return pins.status();
    return server_.Refuse(busy ? FetchRefusal::kBusy : FetchRefusal::kNotHeld, pins.status());
  }
  block.pin = std::move(pins->front());
  ++next_;
  return Verify(block);
}

absl::Status BlockServe::Verify(ServedBlock& block) {
  block.header = block.pin.header();
  block.bytes = store_->BytesInPlace(block.pin);
  if (!block.bytes.empty() && VerifyBlock(block.header, block.bytes).ok()) return absl::OkStatus();
  // Not addressable, in another format, or wrong: Read says which, and erases a wrong copy.
  block.copy.resize(static_cast<size_t>(store_->device().layout().block_bytes));
  const absl::StatusOr<BlockHeader> read = store_->Read(block.pin, block.copy);
  if (absl::IsDataLoss(read.status())) return read.status();
  if (!read.ok()) return absl::UnavailableError(read.status().message());
  block.header = *read;
  block.bytes = block.copy;
  return absl::OkStatus();
}

void BlockServe::CountSent(const ServedBlock& block) {
  MutexLock lock(server_.mu_);
  server_.counters_.served_bytes += block.bytes.size();
  ++server_.counters_.served_blocks;
}

}  // namespace kvmesh
