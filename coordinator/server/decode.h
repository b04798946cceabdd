// Requests in the coordinator's own types, with every limit checked.
#ifndef KVMESH_COORDINATOR_SERVER_DECODE_H_
#define KVMESH_COORDINATOR_SERVER_DECODE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/server/identity_cache.h"
#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/base/status.h"
#include "kvstore/block/block_key.h"

namespace kvmesh {

inline constexpr uint32_t kDefaultTopK = 4;
inline constexpr uint32_t kMaxTopK = 64;

// A prompt as a chain of block keys. Reusable; `keys` points into the request or into `chained`.
struct DecodedPrompt {
  RootKey root;
  uint32_t block_tokens = 0;  // 0: unknown, the request gave a root alone
  std::span<const BlockKey> keys;
  std::vector<BlockKey> chained;
  uint64_t prompt_tokens = 0;  // 0: the full blocks alone
};

// The caller's tenant under TLS, nullopt without.
using CallTenant = std::optional<std::string>;

// INVALID_ARGUMENT naming the field: identity and its fields, root, block_keys, tokens, prompt_tokens, top_k,
// worker_id. Empty block_keys with prompt_tokens are a prompt of less than a block.
absl::Status DecodeRoute(const v1::RouteRequest& request, const CallTenant& tenant, IdentityCache& identities,
                         DecodedPrompt& out);

// INVALID_ARGUMENT naming the field, "prefix." before it; at least one full block is required.
absl::Status DecodePrefix(const v1::Prefix& prefix, const CallTenant& tenant, IdentityCache& identities,
                          DecodedPrompt& out);

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_SERVER_DECODE_H_
