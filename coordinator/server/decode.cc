#include "coordinator/server/decode.h"

#include "absl/strings/str_cat.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/block/ticket.h"
#include "kvstore/wire/wire.h"

namespace kvmesh {
namespace {

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

// The fields that Route and Prefix share.
template <class Message>
absl::Status DecodeChain(const Message& message, const CallTenant& tenant, IdentityCache& identities,
                         DecodedPrompt& out) {
  const bool has_tokens = message.has_tokens();
  out.block_tokens = 0;
  if (has_tokens && !message.block_keys().empty()) return Invalid("block_keys", "given beside tokens");
  if (!message.root().empty()) {
    if (message.has_identity()) return Invalid("root", "given beside identity");
    if (has_tokens) return Invalid("root", "tokens need an identity");
    const auto root = FixedFromBytes<RootKey>(message.root(), "root");
    if (!root.ok()) return root.status();
    out.root = *root;
  } else {
    if (!message.has_identity()) return Invalid("identity", "missing");
    const auto identity = identities.Resolve(message.identity(), tenant);
    if (!identity.ok()) return identity.status();
    out.root = identity->root;
    out.block_tokens = identity->block_tokens;
  }
  if (has_tokens) {
    const auto& ids = message.tokens().ids();
    KVMESH_RETURN_IF_ERROR(CheckTokenCount(static_cast<uint64_t>(ids.size()), "tokens"));
    const std::span<const uint32_t> tokens(ids.data(), static_cast<size_t>(ids.size()));
    out.chained = ComputeBlockKeys(RootAsParent(out.root), tokens, out.block_tokens);
    out.keys = out.chained;
    return absl::OkStatus();
  }
  const auto keys = KeysFromBytes(message.block_keys(), "block_keys");
  if (!keys.ok()) return keys.status();
  out.keys = *keys;
  if (out.block_tokens > 0 && out.keys.size() > kMaxPromptTokens / out.block_tokens) {
    return Invalid("block_keys", absl::StrCat(out.keys.size(), " keys of ", out.block_tokens, " tokens, the limit is ",
                                              kMaxPromptTokens, " tokens"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DecodeRoute(const v1::RouteRequest& request, const CallTenant& tenant, IdentityCache& identities,
                         DecodedPrompt& out) {
  KVMESH_RETURN_IF_ERROR(DecodeChain(request, tenant, identities, out));
  if (request.top_k() > kMaxTopK) return Invalid("top_k", absl::StrCat("more than ", kMaxTopK));
  if (request.worker_id().size() > kMaxWorkerIdBytes) return Invalid("worker_id", "more than 128 bytes");
  out.prompt_tokens = request.prompt_tokens();
  if (out.prompt_tokens > kMaxPromptTokens) {
    return Invalid("prompt_tokens", absl::StrCat(out.prompt_tokens, " tokens, the limit is ", kMaxPromptTokens));
  }
  if (request.has_tokens()) {
    const auto count = static_cast<uint64_t>(request.tokens().ids_size());
    if (out.prompt_tokens != 0 && out.prompt_tokens != count) {
      return Invalid("prompt_tokens", "another number than that of tokens");
    }
    out.prompt_tokens = count;
    return absl::OkStatus();
  }
  if (request.block_keys().empty() && out.prompt_tokens == 0) {
    return Invalid("block_keys", "neither block_keys nor tokens are given");
  }
  if (out.prompt_tokens > 0 && out.prompt_tokens < out.keys.size() * uint64_t{out.block_tokens}) {
    return Invalid("prompt_tokens", "less than block_keys stand for");
  }
  return absl::OkStatus();
}

absl::Status DecodePrefix(const v1::Prefix& prefix, const CallTenant& tenant, IdentityCache& identities,
                          DecodedPrompt& out) {
  const absl::Status status = DecodeChain(prefix, tenant, identities, out);
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat("prefix.", status.message()));
  out.prompt_tokens = 0;
  if (out.keys.empty()) return Invalid("prefix.block_keys", "less than one full block");
  return absl::OkStatus();
}

}  // namespace kvmesh
