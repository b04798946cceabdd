// Permission to pull one span of blocks from one worker, minted by a coordinator and checked by the sender.
#ifndef KVMESH_KVSTORE_BLOCK_TICKET_H_
#define KVMESH_KVSTORE_BLOCK_TICKET_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kvstore/base/bytes.h"
#include "kvstore/base/status.h"
#include "kvstore/block/block_key.h"
#include "kvstore/block/lossy_formats.h"
#include "kvstore/block/secrets.h"

namespace kvmesh {

using TicketId = FixedBytes<struct TicketIdTag, 16>;

inline constexpr absl::Duration kMaxTicketLife = absl::Seconds(30);

struct Ticket {
  TicketId id;
  std::string sender;  // worker ids, at most kMaxWorkerIdBytes each
  Incarnation sender_incarnation;
  std::string receiver;
  Incarnation receiver_incarnation;
  RootKey root;
  BlockKey last_key;         // key of the last block of the span
  uint32_t first_block = 0;  // index in the chain of the span's first block
  uint32_t block_count = 0;  // >= 1
  LossyFormats accepted;
  absl::Time expiry;         // kept in whole milliseconds

  friend bool operator==(const Ticket&, const Ticket&) = default;
};

inline constexpr size_t kMaxWorkerIdBytes = 128;

// Canonical bytes followed by a 32-byte MAC under `key`.
std::string SealTicket(const Ticket& ticket, const TicketKey& key);

// INVALID_ARGUMENT: malformed bytes. PERMISSION_DENIED: the MAC does not match. DEADLINE_EXCEEDED: expired at `now`, or
// an expiry more than kMaxTicketLife ahead. Who it is for and that it is used once is the sender's to check.
absl::StatusOr<Ticket> OpenTicket(absl::string_view sealed, const TicketKey& key, absl::Time now);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BLOCK_TICKET_H_
