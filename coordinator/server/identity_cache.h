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

// Thread safe. Holds at most `capacity` identities of at most kMaxRememberedBytes; a full cache starts again.
class IdentityCache {
 public:
  // Of an identity's message and tenant. Larger ones are resolved each time.
  static constexpr size_t kMaxRememberedBytes = 4096;

  IdentityCache(std::string cluster_secret, size_t capacity)
      : cluster_secret_(std::move(cluster_secret)), capacity_(capacity) {}

  // `tenant`: from the certificate, in place of the identity's own; nullopt: authentication is off.
  // INVALID_ARGUMENT naming the field, as IdentityFromProto.
  absl::StatusOr<ResolvedIdentity> Resolve(const v1::CacheIdentity& identity, const std::optional<std::string>& tenant);

  // Identities that are remembered now.
  size_t size() const {
    ReaderLock lock(mu_);
    return known_.size();
  }

 private:
  const std::string cluster_secret_;
  const size_t capacity_;
  mutable SharedMutex mu_;
  absl::flat_hash_map<std::string, ResolvedIdentity> known_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_IDENTITY_CACHE_H_
