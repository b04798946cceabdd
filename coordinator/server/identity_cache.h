// Roots of the identities that requests carry, remembered: deriving one takes several hashes.
#ifndef KVMESH_COORDINATOR_SERVER_IDENTITY_CACHE_H_
#define KVMESH_COORDINATOR_SERVER_IDENTITY_CACHE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "kvmesh/v1/common.pb.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"
#include "kvstore/block/block_key.h"

namespace kvmesh {

struct ResolvedIdentity {
  RootKey root;
  uint32_t block_tokens = 0;
};

// Thread safe. Holds at most `capacity` identities; a full cache starts again.
class IdentityCache {
 public:
  IdentityCache(std::string cluster_secret, size_t capacity)
      : cluster_secret_(std::move(cluster_secret)), capacity_(capacity) {}

  // `tenant`: from the certificate, in place of the identity's own; nullopt: authentication is off.
  // INVALID_ARGUMENT naming the field.
  absl::StatusOr<ResolvedIdentity> Resolve(const v1::CacheIdentity& identity, const std::optional<std::string>& tenant);

 private:
  const std::string cluster_secret_;
  const size_t capacity_;
  SharedMutex mu_;
  absl::flat_hash_map<std::string, ResolvedIdentity> known_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_IDENTITY_CACHE_H_
