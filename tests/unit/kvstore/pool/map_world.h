// A prefix map with everything it talks to, for tests.
#ifndef KVMESH_TESTS_UNIT_KVSTORE_POOL_MAP_WORLD_H_
#define KVMESH_TESTS_UNIT_KVSTORE_POOL_MAP_WORLD_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "kvstore/pool/prefix_map.h"
#include "tests/support/block_content.h"
#include "tests/support/set_replay.h"

namespace kvmesh {

// Slots count up and are never used twice, so that each names one copy.
class MapWorld : public SetObserver, public CopyStorage {
 public:
  MapWorld() : map(*this, *this, *MakeEvictionPolicyFactory("lru")) {}

  void OnStored(BlockSetKind set, const BlockNode& node) override {
    ASSERT_NE(node.CopyFor(set), nullptr);
    replay.Stored(set, node.root, node.parent_key, node.key, node.CopyFor(set)->header.lossy_formats);
    ++changes;
  }
  void OnTruncated(BlockSetKind set, const BlockNode& node) override {
    EXPECT_FALSE(node.In(set));
    replay.Truncated(set, node.key);
    ++changes;
  }
  void OnBeside(const BlockNode& node, bool held) override {
    EXPECT_GT(node.group, 0u);
    if (held) {
      EXPECT_TRUE(beside.insert(node.chain_key).second);
    } else {
      EXPECT_EQ(beside.erase(node.chain_key), 1u);
    }
  }
  void Free(Tier, uint64_t slot) override {
    EXPECT_LT(slot, next_slot);
    EXPECT_TRUE(freed.insert(slot).second) << "slot " << slot << " freed twice";
  }

  static BlockHeader Header(const RootKey& root, const BlockKey& parent, const BlockKey& key,
                            LossyFormats lossy_formats = LossyFormats()) {
    BlockHeader header;
    header.root = root;
    header.parent = parent;
    header.key = key;
    header.lossy_formats = lossy_formats;
    return header;
  }
  // Adds with a fresh slot.
  absl::StatusOr<BlockNode*> Add(const BlockHeader& header, uint32_t index, Tier tier) {
    return map.Add(header, index, tier, next_slot++);
  }
  // Adds a chain of block 0 onwards; fails the test when that is refused.
  void AddChain(const RootKey& root, const std::vector<BlockKey>& keys, Tier tier) {
    BlockKey parent = RootAsParent(root);
    for (uint32_t i = 0; i < keys.size(); ++i) {
      const absl::StatusOr<BlockNode*> node = Add(Header(root, parent, keys[i]), i, tier);
      ASSERT_TRUE(node.ok()) << node.status();
      parent = keys[i];
    }
  }
  BlockCopy* CopyOf(const BlockKey& key, Tier tier) const {
    const BlockNode* node = map.Find(key);
    return node == nullptr ? nullptr : node->copy(tier);
  }
  // How many blocks have a copy in the tier.
  uint64_t Copies(Tier tier) const {
    uint64_t copies = 0;
    map.ForEachParentsFirst([&](const BlockNode& node) { copies += node.copy(tier) != nullptr ? 1 : 0; });
    return copies;
  }
  // How many of `keys` are in the set.
  size_t CountIn(BlockSetKind set, const std::vector<BlockKey>& keys) const {
    size_t count = 0;
    for (const BlockKey& key : keys) {
      const BlockNode* node = map.Find(key);
      count += node != nullptr && node->In(set) ? 1 : 0;
    }
    return count;
  }

  SetReplay replay;
  std::set<BlockKey> beside;  // held exactly in groups above 0
  std::set<uint64_t> freed;
  uint64_t next_slot = 0;
  uint64_t changes = 0;
  PrefixMap map;  // last: it uses the above
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_KVSTORE_POOL_MAP_WORLD_H_
