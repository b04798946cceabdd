// Permission to pull one span of blocks from one worker, minted by a coordinator and checked by the sender.
#ifndef KVMESH_KVSTORE_BLOCK_TICKET_H_
#define KVMESH_KVSTORE_BLOCK_TICKET_H_

#include <cstddef>
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
  absl::Time expiry;  // kept in whole milliseconds

  friend bool operator==(const Ticket&, const Ticket&) = default;
};

inline constexpr size_t kMaxWorkerIdBytes = 128;

// On the wire, little endian: magic u32, version u16, id 16, sender length u16 and bytes, sender incarnation 16,
// receiver length u16 and bytes, receiver incarnation 16, root 16, last key 16, first block u32, block count u32,
// accepted formats u32, expiry u64 (milliseconds since the epoch); then a 32-byte HMAC-SHA-256 over all of that.
inline constexpr uint32_t kTicketMagic = 0x544d564b;  // "KVMT"
inline constexpr uint16_t kTicketVersion = 1;
inline constexpr size_t kTicketMacBytes = 32;

// REQUIRES: worker ids of 1 to kMaxWorkerIdBytes bytes, block_count >= 1, first_block + block_count <=
// kMaxPromptTokens, an expiry after the epoch; what breaks this seals into bytes that do not open.
std::string SealTicket(const Ticket& ticket, const TicketKey& key);

// INVALID_ARGUMENT: malformed bytes or an unknown version. PERMISSION_DENIED: the MAC does not match.
// DEADLINE_EXCEEDED: expired at `now`, or an expiry more than kMaxTicketLife ahead. Who it is for and that it is used
// once is the sender's to check.
absl::StatusOr<Ticket> OpenTicket(absl::string_view sealed, const TicketKey& key, absl::Time now);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BLOCK_TICKET_H_
