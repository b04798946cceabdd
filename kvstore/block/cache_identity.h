// All that makes K/V non-interchangeable, in the canonical form that every language must reproduce (kvmesh/1).
#ifndef KVMESH_KVSTORE_BLOCK_CACHE_IDENTITY_H_
#define KVMESH_KVSTORE_BLOCK_CACHE_IDENTITY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "kvstore/base/bytes.h"
#include "kvstore/base/status.h"

namespace kvmesh {

using Fingerprint = FixedBytes<struct FingerprintTag, 32>;

// Limits of an identity, so that none grows without bound.
inline constexpr size_t kMaxIdentityTextBytes = 1024;
inline constexpr size_t kMaxIdentityExtras = 64;
inline constexpr uint32_t kMinBlockTokens = 1;
inline constexpr uint32_t kMaxIdentityBlockTokens = 4096;

struct RopeIdentity {
  double theta = 0;         // finite, > 0
  uint32_t rotary_dim = 0;  // >= 1
  bool interleaved = false;
  std::string scaling;  // text, optional

  friend bool operator==(const RopeIdentity&, const RopeIdentity&) = default;
};

struct CacheIdentity {
  std::string tenant;
  std::string cache_salt;
  std::string model;
  std::string model_revision;
  std::string adapter;
  std::string adapter_revision;
  std::string numerics;
  uint32_t block_tokens = 0;
  std::optional<RopeIdentity> rope;
  std::string attention_policy;
  std::map<std::string, std::string> extra;

  friend bool operator==(const CacheIdentity&, const CacheIdentity&) = default;
};

// INVALID_ARGUMENT naming the field: text that is not UTF-8 or too long, block_tokens outside 1..4096, a rope value out
// of range, an attention policy or extra name that is not in canonical form, too many extras.
absl::Status ValidateIdentity(const CacheIdentity& identity);

// u16 LE tag, u32 LE length, value, for every field that is set, in ascending tag order. `attention_policy` "full" is
// written as absent. REQUIRES: ValidateIdentity(identity).ok().
std::string CanonicalBytes(const CacheIdentity& identity);

// SHA-256 of CanonicalBytes. REQUIRES: ValidateIdentity(identity).ok().
Fingerprint ComputeFingerprint(const CacheIdentity& identity);

// JSON form: an object with the field names above; `rope` {theta, rotary_dim, interleaved, scaling}; `extra` an object
// of strings. INVALID_ARGUMENT naming the field: not JSON, a wrong type, an unknown or duplicate name, or any fault
// that ValidateIdentity finds.
absl::StatusOr<CacheIdentity> ParseIdentityJson(absl::string_view json);
// The JSON form, fields in tag order, absent fields left out. Parses back to an equal identity.
std::string IdentityToJson(const CacheIdentity& identity);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BLOCK_CACHE_IDENTITY_H_
