#include "coordinator/server/identity_cache.h"

#include "kvstore/block/cache_identity.h"
#include "kvstore/block/secrets.h"
#include "kvstore/wire/wire.h"

namespace kvmesh {

absl::StatusOr<ResolvedIdentity> IdentityCache::Resolve(const v1::CacheIdentity& identity,
                                                        const std::optional<std::string>& tenant) {
  KVMESH_RETURN_IF_ERROR(CheckIdentitySize(identity));
  // The message's bytes, then the tenant with a mark that tells "none" from an empty one. The first part says its own
  // length: no two pairs share a name.
  thread_local std::string name;
  name.clear();
  AppendLittleEndian(static_cast<uint32_t>(identity.ByteSizeLong()), name);
  identity.AppendToString(&name);
  if (tenant.has_value()) name.append(1, '\1').append(*tenant);
  {
    ReaderLock lock(mu_);
    const auto it = known_.find(name);
    if (it != known_.end()) return it->second;
  }
  v1::CacheIdentity own = identity;
  if (tenant.has_value()) own.set_tenant(*tenant);
  const absl::StatusOr<CacheIdentity> valid = IdentityFromProto(own);
  if (!valid.ok()) return valid.status();
  const ResolvedIdentity resolved = {
      .root = DeriveRoot(DeriveTenantSecret(cluster_secret_, valid->tenant), ComputeFingerprint(*valid)),
      .block_tokens = valid->block_tokens};
  if (name.size() > kMaxRememberedBytes) return resolved;
  WriterLock lock(mu_);
  if (known_.size() >= capacity_) known_.clear();
  known_[name] = resolved;
  return resolved;
}

}  // namespace kvmesh
