#include "kvstore/pool/prefix_map.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/base/check.h"

namespace kvmesh {
namespace {

constexpr size_t Index(BlockSetKind set) { return static_cast<size_t>(set); }
constexpr size_t Index(Tier tier) { return static_cast<size_t>(tier); }

// The set whose closure a copy in `tier` relies on.
constexpr BlockSetKind SetOf(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return BlockSetKind::kDevice;
    case Tier::kHost:
      return BlockSetKind::kMemory;
    case Tier::kDisk:
      break;
  }
  return BlockSetKind::kDisk;
}

}  // namespace

const BlockCopy* BlockNode::CopyFor(BlockSetKind set) const {
  switch (set) {
    case BlockSetKind::kDevice:
      return copy(Tier::kDevice);
    case BlockSetKind::kMemory:
      return copy(Tier::kDevice) != nullptr ? copy(Tier::kDevice) : copy(Tier::kHost);
    case BlockSetKind::kDisk:
      break;
  }
  return copy(Tier::kDisk);
}

bool BlockNode::HitIn(BlockSetKind set, LossyFormats accepted) const {
  const BlockCopy* copy = CopyFor(set);
  return copy != nullptr && copy->header.lossy_formats.SubsetOf(accepted);
}

PrefixMap::PrefixMap(SetObserver& observer, CopyStorage& storage, const EvictionPolicyFactory& policy)
    : observer_(observer), storage_(storage) {
  for (auto& p : policies_) p = policy();
}

PrefixMap::~PrefixMap() {
  for (const uint64_t pinned : pinned_counts_) KVMESH_CHECK(pinned == 0, "a prefix map ends with pinned copies");
}

BlockNode* PrefixMap::Find(const BlockKey& key) const {
  const auto it = nodes_.find(key);
  return it == nodes_.end() ? nullptr : it->second.get();
}

BlockNode* PrefixMap::FindRoot(const RootKey& root) const {
  const auto it = roots_.find(RootAsParent(root));
  return it == roots_.end() ? nullptr : it->second.get();
}

absl::StatusOr<BlockNode*> PrefixMap::ParentFor(const BlockHeader& header, uint32_t index) {
  if (index == 0 || header.group > 0) {
    if (index == 0 && header.parent != RootAsParent(header.root)) {
      return absl::InvalidArgumentError("parent: the parent of block 0 must be its root");
    }
    std::unique_ptr<BlockNode>& root = roots_[RootAsParent(header.root)];
    if (root == nullptr) {
      root = std::make_unique<BlockNode>();
      root->root = header.root;
      root->key = RootAsParent(header.root);
      root->is_root = true;
    }
    return root.get();
  }
  BlockNode* parent = Find(header.parent);
  if (parent == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("parent: block ", header.parent.ToHex(), " is not held"));
  }
  if (parent->root != header.root || parent->index + 1 != index || parent->group > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("parent: block ", header.parent.ToHex(), " stands in another chain or at another index"));
  }
  return parent;
}

absl::Status PrefixMap::CheckNode(const BlockNode& node, const BlockHeader& header, uint32_t index, Tier tier) const {
  if (node.parent_key != header.parent || node.root != header.root || node.index != index ||
      node.group != header.group) {
    return absl::InvalidArgumentError(
        absl::StrCat("key: block ", header.key.ToHex(), " is known under another parent"));
  }
  const BlockCopy* held = node.copy(tier);
  if (held == nullptr) return absl::OkStatus();
  if (held->header.lossy_formats.SubsetOf(header.lossy_formats)) {
    return absl::AlreadyExistsError("the tier holds this block");
  }
  if (!header.lossy_formats.SubsetOf(held->header.lossy_formats)) {
    return absl::FailedPreconditionError("lossy_formats: the tier holds a copy with another history");
  }
  return absl::OkStatus();
}

BlockNode* PrefixMap::NewNode(const BlockKey& key, const BlockHeader& header, uint32_t index, BlockNode* parent) {
  auto owned = std::make_unique<BlockNode>();
  BlockNode* node = owned.get();
  node->root = header.root;
  node->key = key;
  node->chain_key = header.key;
  node->parent_key = header.parent;
  node->index = index;
  node->group = header.group;
  node->last_use = ++use_counter_;
  node->parent = parent;
  node->next_sibling = parent->first_child;
  if (parent->first_child != nullptr) parent->first_child->previous_sibling = node;
  parent->first_child = node;
  nodes_.emplace(key, std::move(owned));
  return node;
}

absl::StatusOr<BlockNode*> PrefixMap::Add(const BlockHeader& header, uint32_t index, Tier tier, uint64_t slot) {
  const BlockKey key = FoundUnder(header);
  BlockNode* node = Find(key);
  if (node != nullptr) KVMESH_RETURN_IF_ERROR(CheckNode(*node, header, index, tier));
  absl::StatusOr<BlockNode*> parent = ParentFor(header, index);
  if (!parent.ok()) return parent;
  if (!(*parent)->In(SetOf(tier))) {
    return absl::FailedPreconditionError(absl::StrCat("parent: block ", header.parent.ToHex(), " left the set"));
  }
  if (node == nullptr) node = NewNode(key, header, index, *parent);

  const Standings before = StandingsOf(*node);
  if (BlockCopy* lossier = node->copy(tier)) Detach(lossier);
  Attach(header, tier, slot, node);
  NoteChange(node, before);
  RefreshCandidates(node);
  RefreshCandidates(*parent);
  return node;
}

void PrefixMap::Attach(const BlockHeader& header, Tier tier, uint64_t slot, BlockNode* node) {
  auto copy = std::make_unique<BlockCopy>();
  copy->header = header;
  copy->tier = tier;
  copy->slot = slot;
  copy->node = node;
  if (header.group == 0) {
    const BlockCopy* alike = nullptr;  // hashing is what costs
    for (const auto& other : node->copies) {
      if (other != nullptr && other->header.lossy_formats == header.lossy_formats) alike = other.get();
    }
    copy->digest_member =
        alike != nullptr ? alike->digest_member : SetMember(header.parent, header.key, header.lossy_formats);
  }
  node->copies[Index(tier)] = std::move(copy);
}

void PrefixMap::Detach(BlockCopy* copy) {
  BlockNode* node = copy->node;
  std::unique_ptr<BlockCopy> owned = std::move(node->copies[Index(copy->tier)]);
  if (owned->eviction.evictable) policies_[Index(copy->tier)]->Remove(copy);
  owned->node = nullptr;
  if (owned->in_use()) {
    owned.release();  // NOLINT: its pins and guards own it now, the last to drop deletes it
  } else {
    storage_.Free(owned->tier, owned->slot);
  }
}

PrefixMap::Standings PrefixMap::StandingsOf(const BlockNode& node) {
  Standings standings;
  for (const BlockSetKind set : kAllSets) {
    const BlockCopy* copy = node.CopyFor(set);
    if (copy != nullptr) standings[Index(set)] = {true, copy->header.lossy_formats, copy->digest_member};
  }
  return standings;
}

bool PrefixMap::HeldExactly(const Standings& standings) {
  return std::any_of(standings.begin(), standings.end(),
                     [](const Standing& standing) { return standing.in && standing.lossy_formats.exact(); });
}

bool PrefixMap::NoteChange(BlockNode* node, const Standings& before) {
  const Standings now = StandingsOf(*node);
  bool left = false;
  if (node->group > 0 && HeldExactly(now) != HeldExactly(before)) observer_.OnBeside(*node, HeldExactly(now));
  for (const BlockSetKind set : kAllSets) {
    const Standing& was = before[Index(set)];
    const Standing& is = now[Index(set)];
    if (was.in == is.in && was.lossy_formats == is.lossy_formats) continue;
    uint32_t& siblings = node->parent->children_in[Index(set)];
    if (is.in && !was.in) ++siblings;
    if (was.in && !is.in) --siblings;
    if (!is.in) left = true;
    if (node->group > 0) continue;
    if (was.in) digests_[Index(set)].Remove(was.digest_member);
    if (is.in) digests_[Index(set)].Add(is.digest_member);
    if (is.in) {
      observer_.OnStored(set, *node);
    } else {
      // A parent that is out of the set left just now, and its truncation covers this node.
      if (node->parent->In(set)) observer_.OnTruncated(set, *node);
    }
  }
  return left;
}

void PrefixMap::Cascade(BlockNode* start, const Standings& start_before) {
  std::vector<std::pair<BlockNode*, Standings>> stack = {{start, start_before}};
  std::vector<BlockNode*> changed;
  while (!stack.empty()) {
    auto [node, before] = stack.back();
    stack.pop_back();
    changed.push_back(node);
    if (!NoteChange(node, before)) continue;
    for (BlockNode* child = node->first_child; child != nullptr; child = child->next_sibling) {
      const Standings child_before = StandingsOf(*child);
      bool lost = false;
      for (const Tier tier : kAllTiers) {
        BlockCopy* copy = child->copy(tier);
        if (copy == nullptr || node->In(SetOf(tier))) continue;
        Detach(copy);
        lost = true;
      }
      if (lost) stack.emplace_back(child, child_before);
    }
  }
  BlockNode* const above = start->parent;
  for (auto it = changed.rbegin(); it != changed.rend(); ++it) {
    RefreshCandidates(*it);
    RemoveIfEmpty(*it);
  }
  if (!above->is_root) {
    RefreshCandidates(above);
  } else if (above->first_child == nullptr) {
    roots_.erase(above->key);
  }
}

void PrefixMap::RemoveIfEmpty(BlockNode* node) {
  for (const Tier tier : kAllTiers) {
    if (node->copy(tier) != nullptr) return;
  }
  KVMESH_CHECK(node->first_child == nullptr, "a node without copies has children");
  if (node->previous_sibling != nullptr) {
    node->previous_sibling->next_sibling = node->next_sibling;
  } else {
    node->parent->first_child = node->next_sibling;
  }
  if (node->next_sibling != nullptr) node->next_sibling->previous_sibling = node->previous_sibling;
  nodes_.erase(node->key);
}

bool PrefixMap::CanEvict(const BlockCopy& copy) const {
  if (copy.node == nullptr || copy.in_use()) return false;
  const BlockNode& node = *copy.node;
  const bool memory_leaf = node.children_in[Index(BlockSetKind::kMemory)] == 0;
  switch (copy.tier) {
    case Tier::kDevice:
      return node.children_in[Index(BlockSetKind::kDevice)] == 0 && (memory_leaf || node.copy(Tier::kHost) != nullptr);
    case Tier::kHost:
      return memory_leaf || node.copy(Tier::kDevice) != nullptr;
    case Tier::kDisk:
      break;
  }
  return node.children_in[Index(BlockSetKind::kDisk)] == 0;
}

void PrefixMap::Evict(BlockCopy* copy) {
  KVMESH_CHECK(CanEvict(*copy), "evicted a copy that others depend on");
  Lose(copy);
}

void PrefixMap::Lose(BlockCopy* copy) {
  BlockNode* node = copy->node;
  if (node == nullptr) return;  // detached before
  const Standings before = StandingsOf(*node);
  Detach(copy);
  Cascade(node, before);
}

void PrefixMap::Erase(BlockNode* node) {
  if (node->is_root) {
    // The root goes with its last child, so each pass re-reads it.
    const RootKey root = node->root;
    while ((node = FindRoot(root)) != nullptr) Erase(node->first_child);
    return;
  }
  const Standings before = StandingsOf(*node);
  for (const Tier tier : kAllTiers) {
    if (BlockCopy* copy = node->copy(tier)) Detach(copy);
  }
  Cascade(node, before);
}

void PrefixMap::Pin(BlockCopy* copy) {
  if (copy->pins++ > 0) return;
  ++pinned_counts_[Index(copy->tier)];
  UseChanged(copy);
}

void PrefixMap::Unpin(BlockCopy* copy) {
  KVMESH_CHECK(copy->pins > 0, "unpinned a copy without pins");
  if (--copy->pins > 0) return;
  --pinned_counts_[Index(copy->tier)];
  UseChanged(copy);
}

void PrefixMap::Guard(BlockCopy* copy) {
  if (copy->guards++ == 0) UseChanged(copy);
}

void PrefixMap::Unguard(BlockCopy* copy) {
  KVMESH_CHECK(copy->guards > 0, "unguarded a copy without guards");
  if (--copy->guards == 0) UseChanged(copy);
}

void PrefixMap::UseChanged(BlockCopy* copy) {
  if (copy->node != nullptr) return RefreshCandidates(copy->node);
  if (copy->in_use()) return;
  const std::unique_ptr<BlockCopy> owned(copy);
  storage_.Free(owned->tier, owned->slot);
}

void PrefixMap::Touch(std::span<BlockNode* const> chain) {
  for (auto it = chain.rbegin(); it != chain.rend(); ++it) {
    (*it)->last_use = ++use_counter_;
    RefreshCandidates(*it);
  }
}

BlockCopy* PrefixMap::Victim(Tier tier) const { return policies_[Index(tier)]->Victim(); }

bool PrefixMap::IsCandidate(const BlockCopy& copy) const {
  if (copy.in_use()) return false;
  // A device copy may always leave for the host, so only its own set's children hold it.
  if (copy.tier == Tier::kDevice) return copy.node->children_in[Index(BlockSetKind::kDevice)] == 0;
  return CanEvict(copy);
}

void PrefixMap::RefreshCandidates(BlockNode* node) {
  if (node->is_root) return;
  for (const Tier tier : kAllTiers) {
    BlockCopy* copy = node->copy(tier);
    if (copy == nullptr) continue;
    EvictionPolicy& policy = *policies_[Index(tier)];
    const bool wanted = IsCandidate(*copy);
    const bool stale = copy->eviction.evictable && copy->eviction.rank != node->last_use;
    if (copy->eviction.evictable && (!wanted || stale)) policy.Remove(copy);
    if (wanted && !copy->eviction.evictable) policy.Add(copy, node->last_use);
  }
}

void PrefixMap::ForEachParentsFirst(const std::function<void(const BlockNode&)>& visit) const {
  std::vector<const BlockNode*> stack;
  for (const auto& [key, root] : roots_) {
    for (const BlockNode* child = root->first_child; child != nullptr; child = child->next_sibling) {
      stack.push_back(child);
    }
    while (!stack.empty()) {
      const BlockNode* node = stack.back();
      stack.pop_back();
      visit(*node);
      for (const BlockNode* child = node->first_child; child != nullptr; child = child->next_sibling) {
        stack.push_back(child);
      }
    }
  }
}

}  // namespace kvmesh
