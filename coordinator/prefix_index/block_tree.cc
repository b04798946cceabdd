#include "coordinator/prefix_index/block_tree.h"

#include <algorithm>

namespace kvmesh {
namespace {

// First copy of the lane or of a later one.
template <class Copies>
auto LowerBound(Copies& copies, LaneId lane) {
  return std::lower_bound(copies.begin(), copies.end(), lane,
                          [](const BlockTree::Copy& copy, LaneId wanted) { return copy.lane < wanted; });
}

}  // namespace

NodeId BlockTree::Find(const BlockKey& key) const {
  const auto& shard = ids_[ShardOf(key)];
  const auto it = shard.find(key);
  return it == shard.end() ? kNoNode : it->second;
}

NodeId BlockTree::FindOrAddRoot(const RootKey& root) {
  const auto it = roots_.find(root);
  if (it != roots_.end()) return it->second;
  const NodeId id = Allocate();
  roots_.emplace(root, id);
  Node& node = Mutable(id);
  node.key = RootAsParent(root);
  node.root = id;
  node.depth = 0;
  return id;
}

NodeId BlockTree::Add(const BlockKey& key, NodeId parent) {
  auto& shard = ids_[ShardOf(key)];
  const auto [it, added] = shard.try_emplace(key, kNoNode);
  if (!added) return kNoNode;
  const NodeId id = Allocate();
  it->second = id;
  Node& node = Mutable(id);
  node.key = key;
  node.root = this->node(parent).root;
  node.depth = this->node(parent).depth + 1;
  Link(id, parent);
  return id;
}

void BlockTree::FreeIfUnused(NodeId id) {
  while (id != kNoNode) {
    Node& node = Mutable(id);
    if (!node.used || !node.copies.empty() || node.first_child != kNoNode) return;
    const NodeId parent = node.parent;
    if (parent == kNoNode) {
      roots_.erase(RootKey{node.key.bytes});
    } else {
      Unlink(id);
      ids_[ShardOf(node.key)].erase(node.key);
    }
    std::destroy_at(&node);
    std::construct_at(&node);
    free_.push_back(id);
    --nodes_;
    id = parent;
  }
}

const BlockTree::Copy* BlockTree::FindCopy(NodeId id, LaneId lane) const {
  const auto& copies = node(id).copies;
  const auto it = LowerBound(copies, lane);
  return it != copies.end() && it->lane == lane ? &*it : nullptr;
}

BlockTree::Copy* BlockTree::FindCopy(NodeId id, LaneId lane) {
  auto& copies = Mutable(id).copies;
  const auto it = LowerBound(copies, lane);
  return it != copies.end() && it->lane == lane ? &*it : nullptr;
}

uint64_t BlockTree::CopyCost(NodeId id) const {
  const auto& copies = node(id).copies;
  return copies.size() < copies.capacity() ? 0 : 2 * copies.capacity() * sizeof(Copy);
}

void BlockTree::AddCopy(NodeId id, const Copy& copy) {
  Node& node = Mutable(id);
  heap_bytes_ -= HeapBytes(node);
  node.copies.insert(LowerBound(node.copies, copy.lane), copy);
  heap_bytes_ += HeapBytes(node);
  ++copies_;
}

void BlockTree::EraseCopy(NodeId id, LaneId lane) {
  Node& node = Mutable(id);
  const auto it = LowerBound(node.copies, lane);
  if (it == node.copies.end() || it->lane != lane) return;
  heap_bytes_ -= HeapBytes(node);
  node.copies.erase(it);
  if (node.copies.size() <= 2) node.copies.shrink_to_fit();
  heap_bytes_ += HeapBytes(node);
  --copies_;
}

void BlockTree::Subtree(NodeId top, LaneId lane, std::vector<NodeId>& out) const {
  out.assign(1, top);
  for (size_t next = 0; next < out.size(); ++next) {
    for (NodeId child = node(out[next]).first_child; child != kNoNode; child = node(child).next_sibling) {
      if (FindCopy(child, lane) != nullptr) out.push_back(child);
    }
  }
}

uint32_t BlockTree::SweepFrom(uint32_t begin, uint32_t limit, std::span<const LaneId> lanes) {
  const uint32_t end = std::min(end_, begin + std::min(limit, end_));
  for (uint32_t i = begin; i < end; ++i) {
    const NodeId id{i};
    if (!node(id).used || node(id).copies.empty()) continue;
    for (const LaneId lane : lanes) EraseCopy(id, lane);
    FreeIfUnused(id);
  }
  return end >= end_ ? 0 : end;
}

NodeId BlockTree::Allocate() {
  NodeId id;
  if (!free_.empty()) {
    id = free_.back();
    free_.pop_back();
  } else {
    id = NodeId(end_++);
    if (id.value() / kChunkNodes == chunks_.size()) chunks_.push_back(std::make_unique<Node[]>(kChunkNodes));
  }
  Mutable(id).used = true;
  ++nodes_;
  return id;
}

void BlockTree::Link(NodeId id, NodeId parent) {
  Node& node = Mutable(id);
  Node& above = Mutable(parent);
  node.parent = parent;
  node.next_sibling = above.first_child;
  if (above.first_child != kNoNode) Mutable(above.first_child).previous_sibling = id;
  above.first_child = id;
}

void BlockTree::Unlink(NodeId id) {
  Node& node = Mutable(id);
  if (node.previous_sibling != kNoNode) {
    Mutable(node.previous_sibling).next_sibling = node.next_sibling;
  } else {
    Mutable(node.parent).first_child = node.next_sibling;
  }
  if (node.next_sibling != kNoNode) Mutable(node.next_sibling).previous_sibling = node.previous_sibling;
}

uint64_t BlockTree::HeapBytes(const Node& node) {
  return node.copies.capacity() <= 2 ? 0 : node.copies.capacity() * sizeof(Copy);
}

}  // namespace kvmesh
