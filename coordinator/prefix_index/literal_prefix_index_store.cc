// LiteralPrefixIndex: taking in runs of blocks.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/prefix_index/literal_prefix_index.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/block/set_digest.h"

namespace kvmesh {
namespace {

absl::Status ProtocolError(absl::string_view what, const BlockKey& key) {
  return absl::InvalidArgumentError(absl::StrCat("stored: ", what, ": ", key.ToHex()));
}

}  // namespace

absl::Status LiteralPrefixIndex::Stored(WorkerSlot worker, IndexSet set, const StoredRun& run) {
  return Store(worker, set, run, /*hidden=*/false);
}

absl::Status LiteralPrefixIndex::ApplyToSnapshot(WorkerSlot worker, IndexSet set, const StoredRun& run) {
  return Store(worker, set, run, /*hidden=*/true);
}

absl::Status LiteralPrefixIndex::Store(WorkerSlot slot, IndexSet set, const StoredRun& run, bool hidden) {
  if (run.keys.empty()) return ProtocolError("no keys after", run.parent);
  if (run.keys.size() > kMaxPromptTokens - std::min<uint64_t>(run.first_block, kMaxPromptTokens)) {
    return ProtocolError("longer than a prompt can be", run.parent);
  }
  // Hashing outside of the lock.
  std::vector<unsigned __int128> members;
  members.reserve(run.keys.size());
  const BlockKey* parent_key = &run.parent;
  for (const BlockKey& key : run.keys) {
    members.push_back(SetMember(*parent_key, key, run.lossy_formats));
    parent_key = &key;
  }

  WriterLock lock(mu_);
  const Worker* worker = Find(slot);
  if (worker == nullptr) return absl::NotFoundError(absl::StrCat("prefix index: no worker in slot ", slot.value()));
  if (worker->snapshot_open != hidden) {
    return absl::FailedPreconditionError(hidden ? "snapshot: none is open" : "stored: a snapshot is open");
  }
  const LaneId lane = (hidden ? worker->hidden : worker->visible)[IndexOf(set)];
  const absl::StatusOr<NodeId> parent = ResolveParent(lane, run);
  if (!parent.ok()) return parent.status();
  std::vector<NodeId> nodes;
  const absl::Status resolved = ResolveNodes(lane, run, *parent, nodes);
  if (resolved.ok()) {
    AddCopies(lane, run, *parent, nodes, members);
    Shed(lane, nodes.empty() ? *parent : nodes.back(), std::span(members).subspan(nodes.size()));
  }
  if (nodes.empty() && *parent != kNoNode) tree_.FreeIfUnused(*parent);  // a root made for nothing
  return resolved;
}

absl::StatusOr<NodeId> LiteralPrefixIndex::ResolveParent(LaneId lane, const StoredRun& run) {
  if (run.first_block == 0) {
    if (run.parent != RootAsParent(run.root))
      return ProtocolError("block 0 under another parent than its root", run.parent);
    return tree_.FindOrAddRoot(run.root);
  }
  const NodeId parent = tree_.Find(run.parent);
  if (parent != kNoNode) {
    const BlockTree::Node& node = tree_.node(parent);
    if (node.depth != run.first_block) return ProtocolError("parent at another position", run.parent);
    if (tree_.node(node.root).key != RootAsParent(run.root)) return ProtocolError("parent of another root", run.parent);
    if (tree_.FindCopy(parent, lane) != nullptr) return parent;
  }
  if (lanes_[lane.value()].shed == 0) return ProtocolError("parent is not in the set", run.parent);
  return kNoNode;
}

absl::Status LiteralPrefixIndex::ResolveNodes(LaneId lane, const StoredRun& run, NodeId parent,
                                              std::vector<NodeId>& nodes) {
  std::vector<NodeId> known;
  known.reserve(run.keys.size());
  const BlockKey* parent_key = &run.parent;
  for (const BlockKey& key : run.keys) {
    const NodeId id = tree_.Find(key);
    if (id != kNoNode && tree_.node(tree_.node(id).parent).key != *parent_key) {
      return ProtocolError("key known under another parent", key);
    }
    known.push_back(id);
    parent_key = &key;
  }
  if (parent == kNoNode) return absl::OkStatus();

  uint64_t planned = 0;
  for (size_t i = 0; i < known.size(); ++i) {
    NodeId id = known[i];
    const bool held = id != kNoNode && tree_.FindCopy(id, lane) != nullptr;
    if (id != kNoNode && !held) planned += tree_.CopyCost(id);
    const uint64_t node_bytes = id == kNoNode ? BlockTree::kNodeBytes : 0;
    if (!held && tree_.bytes() + planned + node_bytes > options_.max_bytes) break;
    if (id == kNoNode) id = tree_.Add(run.keys[i], nodes.empty() ? parent : nodes.back());
    if (id == kNoNode) {
      // Only a key that stands twice in this run is there now and was not before. Undo, children first.
      if (!nodes.empty()) tree_.FreeIfUnused(nodes.back());
      nodes.clear();
      return ProtocolError("key twice in one run", run.keys[i]);
    }
    nodes.push_back(id);
  }
  return absl::OkStatus();
}

void LiteralPrefixIndex::AddCopies(LaneId lane_id, const StoredRun& run, NodeId parent, std::span<const NodeId> nodes,
                                   std::span<const unsigned __int128> members) {
  Lane& lane = lanes_[lane_id.value()];
  const BlockTree::Copy* above = nodes.empty() ? nullptr : tree_.FindCopy(parent, lane_id);
  LossyFormats path = above == nullptr ? LossyFormats() : above->path;
  for (size_t i = 0; i < nodes.size(); ++i) {
    BlockTree::Copy* copy = tree_.FindCopy(nodes[i], lane_id);
    if (copy == nullptr) {
      path = path.Union(run.lossy_formats);
      tree_.AddCopy(nodes[i], {.lane = lane_id, .own = run.lossy_formats, .path = path});
      lane.applied.Add(members[i]);
      ++lane.blocks;
      continue;
    }
    if (copy->own != run.lossy_formats) {
      const BlockKey& parent_key = tree_.node(tree_.node(nodes[i]).parent).key;
      lane.applied.Remove(SetMember(parent_key, run.keys[i], copy->own));
      lane.applied.Add(members[i]);
      copy->own = run.lossy_formats;
      RefreshPaths(nodes[i], lane_id, path);
    }
    path = copy->path;
  }
}

void LiteralPrefixIndex::RefreshPaths(NodeId top, LaneId lane, LossyFormats above) {
  std::vector<NodeId> subtree;
  tree_.Subtree(top, lane, subtree);
  for (const NodeId id : subtree) {
    BlockTree::Copy& copy = *tree_.FindCopy(id, lane);
    const LossyFormats inherited = id == top ? above : tree_.FindCopy(tree_.node(id).parent, lane)->path;
    copy.path = inherited.Union(copy.own);
  }
}

void LiteralPrefixIndex::Shed(LaneId lane_id, NodeId parent, std::span<const unsigned __int128> members) {
  if (members.empty()) return;
  Lane& lane = lanes_[lane_id.value()];
  for (const unsigned __int128 member : members) lane.applied.Add(member);
  lane.shed += members.size();
  shed_blocks_ += members.size();
  if (parent == kNoNode) return;
  if (BlockTree::Copy* copy = tree_.FindCopy(parent, lane_id); copy != nullptr) copy->shed_below = true;
}

}  // namespace kvmesh
