// Block keys of a token sequence.
#ifndef KVMESH_KVSTORE_BLOCK_KEY_CHAIN_H_
#define KVMESH_KVSTORE_BLOCK_KEY_CHAIN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvstore/block/block_key.h"
#include "kvstore/block/secrets.h"

namespace kvmesh {

// Longest prompt that any call takes, in tokens.
inline constexpr uint64_t kMaxPromptTokens = 1'048'576;

// An image or audio item that overlaps a block.
struct NonTokenInput {
  uint32_t offset = 0;  // tokens from the block's start
  Digest32 content;     // digest of the item's content
};

// SHA-256 over u32 LE offset and digest of each item, in order: the `extra` of ComputeBlockKey for a block that has
// any.
Digest32 ComputeExtraDigest(std::span<const NonTokenInput> inputs);

// key[i] = first 16 bytes of SHA-256(parent || tokens || extra). `tokens`: exactly one block of ids. `extra`: null, or
// the digest of the block's non-token inputs.
BlockKey ComputeBlockKey(const BlockKey& parent, std::span<const uint32_t> tokens, const Digest32* extra = nullptr);

// Keys of all full blocks of `tokens`; a partial tail has none. `parent` is the key before tokens[0] (the root for a
// prompt). REQUIRES: block_tokens >= 1.
std::vector<BlockKey> ComputeBlockKeys(const BlockKey& parent, std::span<const uint32_t> tokens, uint32_t block_tokens);

// Key of group `group`'s block beside the chain's: for a group above 0 the first 16 bytes of SHA-256(key || "group" ||
// u32 LE group); the chain's own key for group 0.
BlockKey ComputeGroupKey(const BlockKey& key, uint32_t group);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BLOCK_KEY_CHAIN_H_
