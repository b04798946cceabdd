#include "kvstore/block/key_chain.h"

#include <bit>
#include <cstring>
#include <string>

#include "kvstore/block/sha256.h"

namespace kvmesh {

static_assert(std::endian::native == std::endian::little,
              "token ids and groups are hashed as little-endian bytes in place");

BlockKey ComputeBlockKey(const BlockKey& parent, std::span<const uint32_t> tokens, const Digest32* extra) {
  Sha256Stream stream;
  stream.Update(parent.bytes.data(), parent.bytes.size());
  stream.Update(tokens.data(), tokens.size_bytes());
  if (extra != nullptr) stream.Update(extra->bytes.data(), extra->bytes.size());
  Digest32 digest;
  stream.Final(digest.bytes.data());
  BlockKey key;
  std::memcpy(key.bytes.data(), digest.bytes.data(), key.bytes.size());
  return key;
}

BlockKey ComputeGroupKey(const BlockKey& key, uint32_t group) {
  if (group == 0) return key;
  Sha256Stream stream;
  stream.Update(key.bytes.data(), key.bytes.size());
  stream.Update("group", 5);
  stream.Update(&group, sizeof(group));
  Digest32 digest;
  stream.Final(digest.bytes.data());
  BlockKey out;
  std::memcpy(out.bytes.data(), digest.bytes.data(), out.bytes.size());
  return out;
}

std::vector<BlockKey> ComputeBlockKeys(const BlockKey& parent, std::span<const uint32_t> tokens,
                                       uint32_t block_tokens) {
  const size_t blocks = tokens.size() / block_tokens;
  std::vector<BlockKey> keys;
  keys.reserve(blocks);
  const BlockKey* previous = &parent;
  for (size_t i = 0; i < blocks; ++i) {
    keys.push_back(ComputeBlockKey(*previous, tokens.subspan(i * block_tokens, block_tokens)));
    previous = &keys.back();
  }
  return keys;
}

Digest32 ComputeExtraDigest(std::span<const NonTokenInput> inputs) {
  std::string bytes;
  bytes.reserve(inputs.size() * (sizeof(uint32_t) + Digest32::kSize));
  for (const NonTokenInput& input : inputs) {
    AppendLittleEndian(input.offset, bytes);
    bytes.append(input.content.view().data(), Digest32::kSize);
  }
  return Sha256(bytes);
}

}  // namespace kvmesh
