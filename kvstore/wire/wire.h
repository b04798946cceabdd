// Decoding and encoding of what both services share. Errors are INVALID_ARGUMENT and name the field and its limit.
#ifndef KVMESH_KVSTORE_WIRE_WIRE_H_
#define KVMESH_KVSTORE_WIRE_WIRE_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"
#include "kvmesh/v1/common.pb.h"
#include "kvstore/base/bytes.h"
#include "kvstore/base/status.h"
#include "kvstore/block/block_key.h"
#include "kvstore/block/cache_identity.h"

namespace kvmesh {

// Bytes of an identity's message at most: above what a valid one can take.
inline constexpr size_t kMaxIdentityMessageBytes = 80 << 10;
static_assert((kMaxIdentityExtras + 9) * (kMaxIdentityTextBytes + 16) <= kMaxIdentityMessageBytes,
              "a valid identity has 9 texts and its extras, each with a few bytes around it");

// INVALID_ARGUMENT: larger than kMaxIdentityMessageBytes. Counts unknown fields too.
absl::Status CheckIdentitySize(const v1::CacheIdentity& proto);

// A valid identity. INVALID_ARGUMENT: a field that this version does not know, since it may be what tells two
// identities apart; duplicate extras; and all faults of CheckIdentitySize and ValidateIdentity.
absl::StatusOr<CacheIdentity> IdentityFromProto(const v1::CacheIdentity& proto);
void IdentityToProto(const CacheIdentity& identity, v1::CacheIdentity& proto);

// A view of packed keys, valid as long as `bytes`. INVALID_ARGUMENT naming `field`: the length is not a multiple of 16,
// or more than kMaxPromptTokens keys.
absl::StatusOr<std::span<const BlockKey>> KeysFromBytes(absl::string_view bytes, absl::string_view field);
absl::string_view KeysToBytes(std::span<const BlockKey> keys);

// INVALID_ARGUMENT naming `field`: more than kMaxPromptTokens, or none.
absl::Status CheckTokenCount(uint64_t count, absl::string_view field);

// Exactly Fixed::kSize bytes. INVALID_ARGUMENT naming `field`.
template <class Fixed>
absl::StatusOr<Fixed> FixedFromBytes(absl::string_view bytes, absl::string_view field);

absl::Status WrongLength(absl::string_view field, size_t got, size_t want);

template <class Fixed>
absl::StatusOr<Fixed> FixedFromBytes(absl::string_view bytes, absl::string_view field) {
  const auto value = Fixed::FromBytes(bytes);
  if (!value) return WrongLength(field, bytes.size(), Fixed::kSize);
  return Fixed{value->bytes};
}

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_WIRE_WIRE_H_
