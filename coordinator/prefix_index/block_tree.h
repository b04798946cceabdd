// Every known block as a node under its parent, with the copies that lanes hold of it, and the memory they take.
#ifndef KVMESH_COORDINATOR_PREFIX_INDEX_BLOCK_TREE_H_
#define KVMESH_COORDINATOR_PREFIX_INDEX_BLOCK_TREE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "kvstore/base/strong_int.h"
#include "kvstore/block/block_key.h"
#include "kvstore/block/lossy_formats.h"

namespace kvmesh {

using NodeId = StrongInt<struct NodeIdTag, uint32_t>;
inline constexpr NodeId kNoNode{0xffffffff};
// One generation of one set of one worker (literal_prefix_index.h).
using LaneId = StrongInt<struct LaneIdTag, uint32_t>;

// Invariants: a node's parent exists; a block has a copy or a child, or is about to get one; a root has a child, or is
// about to. Nodes never move. Not thread safe; const calls may run in parallel.
class BlockTree {
 public:
  struct Copy {
    LaneId lane;
    LossyFormats own;         // of this copy
    LossyFormats path;        // union of `own` from block 0 to here: monotone along a chain
    bool shed_below = false;  // the lane shed a child of this block
  };
  struct Node {
    BlockKey key;  // a root's node has the root's bytes
    NodeId parent = kNoNode;
    NodeId root = kNoNode;
    NodeId first_child = kNoNode;
    NodeId next_sibling = kNoNode;
    NodeId previous_sibling = kNoNode;
    uint32_t depth = 0;  // root: 0, block i of a chain: i + 1
    bool used = false;
    absl::InlinedVector<Copy, 2> copies;  // by ascending lane
  };

  // Accounted bytes of one node, its hash entry at the table's usual load included.
  static constexpr uint64_t kNodeBytes = sizeof(Node) + 40;

  NodeId Find(const BlockKey& key) const;
  // REQUIRES: the node exists.
  const Node& node(NodeId id) const { return chunks_[id.value() / kChunkNodes][id.value() % kChunkNodes]; }

  // The root's node, made if it is not there.
  NodeId FindOrAddRoot(const RootKey& root);
  // kNoNode: the key is there already.
  NodeId Add(const BlockKey& key, NodeId parent);
  // Frees the node if it has neither copy nor child, then its ancestors likewise. A node that is free already is
  // ignored.
  void FreeIfUnused(NodeId id);

  const Copy* FindCopy(NodeId id, LaneId lane) const;
  Copy* FindCopy(NodeId id, LaneId lane);
  // Bytes that another copy of this node would take beyond the node itself.
  uint64_t CopyCost(NodeId id) const;
  // REQUIRES: the lane has no copy of this block.
  void AddCopy(NodeId id, const Copy& copy);
  // Removes the copy if there is one; never frees the node.
  void EraseCopy(NodeId id, LaneId lane);

  // Blocks that `lane` holds from `top` down, parents first. REQUIRES: the lane holds `top`.
  void Subtree(NodeId top, LaneId lane, std::vector<NodeId>& out) const;
  // Drops all copies of `lanes` among at most `limit` nodes from number `begin` on and frees what is unused. Returns
  // where to go on; 0 when the end was reached.
  uint32_t SweepFrom(uint32_t begin, uint32_t limit, std::span<const LaneId> lanes);

  uint64_t blocks() const { return nodes_ - roots_.size(); }
  uint64_t copies() const { return copies_; }
  uint64_t bytes() const { return nodes_ * kNodeBytes + heap_bytes_; }

 private:
  static constexpr uint32_t kChunkNodes = 4096;
  // Growing one small table stalls writers for less time than growing one big one.
  static constexpr size_t kShards = 64;

  Node& Mutable(NodeId id) { return chunks_[id.value() / kChunkNodes][id.value() % kChunkNodes]; }
  static size_t ShardOf(const BlockKey& key) { return key.bytes[15] % kShards; }
  NodeId Allocate();
  void Link(NodeId id, NodeId parent);
  void Unlink(NodeId id);
  static uint64_t HeapBytes(const Node& node);

  std::array<absl::flat_hash_map<BlockKey, NodeId>, kShards> ids_;
  absl::flat_hash_map<RootKey, NodeId> roots_;
  std::vector<std::unique_ptr<Node[]>> chunks_;
  uint32_t end_ = 0;  // nodes ever allocated
  std::vector<NodeId> free_;
  uint64_t nodes_ = 0;
  uint64_t copies_ = 0;
  uint64_t heap_bytes_ = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_PREFIX_INDEX_BLOCK_TREE_H_
