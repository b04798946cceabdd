#include "kvstore/block/ticket.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kvstore/block/key_chain.h"

namespace kvmesh {
namespace {

// Takes fields off the front of a string. After the first field that does not fit, `ok` is false and reads give zeros.
class Cursor {
 public:
  explicit Cursor(absl::string_view rest) : rest_(rest) {}
  bool ok() const { return ok_; }
  bool done() const { return ok_ && rest_.empty(); }

  absl::string_view Take(size_t size) {
    if (!ok_ || rest_.size() < size) {
      ok_ = false;
      return {};
    }
    const absl::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  template <class T>
  T Integer() {
    static_assert(std::is_unsigned_v<T>);
    const absl::string_view raw = Take(sizeof(T));
    T value = 0;
    for (size_t i = 0; i < raw.size(); ++i) {
      value |= static_cast<T>(static_cast<T>(static_cast<uint8_t>(raw[i])) << (8 * i));
    }
    return value;
  }
  template <class Tag, size_t N>
  void Bytes(FixedBytes<Tag, N>& out) {
    if (const absl::string_view raw = Take(N); raw.size() == N) std::memcpy(out.bytes.data(), raw.data(), N);
  }
  // A u16 length and that many bytes.
  std::string Text() { return std::string(Take(Integer<uint16_t>())); }

 private:
  absl::string_view rest_;
  bool ok_ = true;
};

void AppendText(const std::string& text, std::string& out) {
  AppendLittleEndian(static_cast<uint16_t>(text.size()), out);
  out.append(text);
}

template <class Tag, size_t N>
void AppendBytes(const FixedBytes<Tag, N>& bytes, std::string& out) {
  out.append(bytes.view().data(), N);
}

absl::Status Malformed(absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat("ticket: ", what)); }

absl::Status CheckWorkerId(absl::string_view field, const std::string& id) {
  if (!id.empty() && id.size() <= kMaxWorkerIdBytes) return absl::OkStatus();
  return Malformed(absl::StrCat(field, " of ", id.size(), " bytes, must be 1 to ", kMaxWorkerIdBytes));
}

// Reads the bytes in front of the MAC.
absl::StatusOr<Ticket> Parse(absl::string_view body) {
  Cursor cursor(body);
  if (cursor.Integer<uint32_t>() != kTicketMagic || !cursor.ok()) return Malformed("wrong magic");
  if (const auto version = cursor.Integer<uint16_t>(); version != kTicketVersion) {
    return Malformed(absl::StrCat("version ", version, ", this build reads ", kTicketVersion));
  }
  Ticket ticket;
  cursor.Bytes(ticket.id);
  ticket.sender = cursor.Text();
  cursor.Bytes(ticket.sender_incarnation);
  ticket.receiver = cursor.Text();
  cursor.Bytes(ticket.receiver_incarnation);
  cursor.Bytes(ticket.root);
  cursor.Bytes(ticket.last_key);
  ticket.first_block = cursor.Integer<uint32_t>();
  ticket.block_count = cursor.Integer<uint32_t>();
  ticket.accepted = LossyFormats(cursor.Integer<uint32_t>());
  const uint64_t expiry = cursor.Integer<uint64_t>();
  if (!cursor.done()) return Malformed("wrong length");

  KVMESH_RETURN_IF_ERROR(CheckWorkerId("sender", ticket.sender));
  KVMESH_RETURN_IF_ERROR(CheckWorkerId("receiver", ticket.receiver));
  if (ticket.block_count == 0 || uint64_t{ticket.first_block} + ticket.block_count > kMaxPromptTokens) {
    return Malformed(absl::StrCat("blocks ", ticket.first_block, " + ", ticket.block_count, ", must be 1 to ",
                                  kMaxPromptTokens, " in all"));
  }
  if (expiry > uint64_t{std::numeric_limits<int64_t>::max()}) return Malformed("expiry out of range");
  ticket.expiry = absl::FromUnixMillis(static_cast<int64_t>(expiry));
  return ticket;
}

}  // namespace

std::string SealTicket(const Ticket& ticket, const TicketKey& key) {
  std::string out;
  AppendLittleEndian(kTicketMagic, out);
  AppendLittleEndian(kTicketVersion, out);
  AppendBytes(ticket.id, out);
  AppendText(ticket.sender, out);
  AppendBytes(ticket.sender_incarnation, out);
  AppendText(ticket.receiver, out);
  AppendBytes(ticket.receiver_incarnation, out);
  AppendBytes(ticket.root, out);
  AppendBytes(ticket.last_key, out);
  AppendLittleEndian(ticket.first_block, out);
  AppendLittleEndian(ticket.block_count, out);
  AppendLittleEndian(ticket.accepted.bits(), out);
  AppendLittleEndian(static_cast<uint64_t>(absl::ToUnixMillis(ticket.expiry)), out);
  AppendBytes(HmacSha256(key.view(), out), out);
  return out;
}

absl::StatusOr<Ticket> OpenTicket(absl::string_view sealed, const TicketKey& key, absl::Time now) {
  if (sealed.size() < kTicketMacBytes) return Malformed("shorter than its MAC");
  const absl::string_view body = sealed.substr(0, sealed.size() - kTicketMacBytes);
  absl::StatusOr<Ticket> ticket = Parse(body);
  if (!ticket.ok()) return ticket;
  if (!ConstantTimeEqual(HmacSha256(key.view(), body).view(), sealed.substr(body.size()))) {
    return absl::PermissionDeniedError("ticket: MAC does not match");
  }
  if (now >= ticket->expiry) return absl::DeadlineExceededError("ticket: expired");
  if (ticket->expiry - now > kMaxTicketLife) {
    return absl::DeadlineExceededError(
        absl::StrCat("ticket: expiry is more than ", absl::FormatDuration(kMaxTicketLife), " ahead"));
  }
  return ticket;
}

}  // namespace kvmesh
