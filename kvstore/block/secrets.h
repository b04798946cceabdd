// Key material: cluster secret -> tenant secret -> identity root, and the ticket key.
#ifndef KVMESH_KVSTORE_BLOCK_SECRETS_H_
#define KVMESH_KVSTORE_BLOCK_SECRETS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "kvstore/base/bytes.h"
#include "kvstore/base/status.h"
#include "kvstore/block/block_key.h"
#include "kvstore/block/cache_identity.h"

namespace kvmesh {

using TenantSecret = FixedBytes<struct TenantSecretTag, 32>;
using TicketKey = FixedBytes<struct TicketKeyTag, 32>;
using Digest32 = FixedBytes<struct Digest32Tag, 32>;

inline constexpr size_t kMaxSecretFileBytes = 4096;

Digest32 Sha256(absl::string_view data);
Digest32 HmacSha256(absl::string_view key, absl::string_view data);
// Compares in time that depends on the length only.
bool ConstantTimeEqual(absl::string_view a, absl::string_view b);

// HMAC-SHA-256(cluster_secret, "kvmesh/1 tenant" || tenant).
TenantSecret DeriveTenantSecret(absl::string_view cluster_secret, absl::string_view tenant);
// First 16 bytes of HMAC-SHA-256(tenant_secret, "kvmesh/1 root" || fingerprint).
RootKey DeriveRoot(const TenantSecret& tenant_secret, const Fingerprint& fingerprint);
// HMAC-SHA-256(cluster_secret, "kvmesh/1 ticket").
TicketKey DeriveTicketKey(absl::string_view cluster_secret);

// Raw bytes, never trimmed. NOT_FOUND or PERMISSION_DENIED naming the path; INVALID_ARGUMENT above kMaxSecretFileBytes.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BLOCK_SECRETS_H_
