// Names and bytes of test blocks. Keys are chained from a root as in production; a block's bytes derive from its key,
// so that whoever gets a block can check all of it.
#ifndef KVMESH_TESTS_SUPPORT_BLOCK_CONTENT_H_
#define KVMESH_TESTS_SUPPORT_BLOCK_CONTENT_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kvstore/block/block_key.h"
#include "kvstore/block/key_chain.h"

namespace kvmesh {

// The `number`th identity; distinct numbers have distinct roots.
inline RootKey TestRoot(uint32_t number) {
  const BlockKey key = ComputeBlockKey(BlockKey{}, {&number, 1});
  return RootKey{key.bytes};
}

// The child of `parent` on a branch; equal arguments give equal keys.
inline BlockKey TestChild(const BlockKey& parent, uint32_t branch) { return ComputeBlockKey(parent, {&branch, 1}); }

// Keys of `blocks` blocks from block 0 of `root`, all on the same branch.
inline std::vector<BlockKey> TestChain(const RootKey& root, uint32_t branch, size_t blocks) {
  std::vector<BlockKey> keys;
  BlockKey parent = RootAsParent(root);
  for (size_t i = 0; i < blocks; ++i) keys.push_back(parent = TestChild(parent, branch));
  return keys;
}

// Byte `i` of the block named `key`, for i in steps of 8.
inline uint64_t TestContentWord(const BlockKey& key, uint64_t i) {
  uint64_t seed;
  std::memcpy(&seed, key.bytes.data(), sizeof(seed));
  uint64_t x = seed + (i + 1) * 0x9e3779b97f4a7c15u;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// REQUIRES: the size is a multiple of 8.
inline void FillBlock(const BlockKey& key, std::span<std::byte> out) {
  for (size_t i = 0; i < out.size(); i += sizeof(uint64_t)) {
    const uint64_t word = TestContentWord(key, i);
    std::memcpy(out.data() + i, &word, sizeof(word));
  }
}

inline testing::AssertionResult HoldsBlock(const BlockKey& key, std::span<const std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = TestContentWord(key, i);
    if (std::memcmp(bytes.data() + i, &word, sizeof(word)) != 0) {
      return testing::AssertionFailure() << "block " << key.ToHex() << " differs at byte " << i << " of "
                                         << bytes.size();
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SUPPORT_BLOCK_CONTENT_H_
