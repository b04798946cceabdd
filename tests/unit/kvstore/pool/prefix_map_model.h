// The literal prefix map: which tiers hold which block, and every consequence worked out anew from that after each
// change. The oracle of prefix_map_oracle_test.cc.
#ifndef KVMESH_TESTS_UNIT_KVSTORE_POOL_PREFIX_MAP_MODEL_H_
#define KVMESH_TESTS_UNIT_KVSTORE_POOL_PREFIX_MAP_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "kvstore/pool/prefix_map.h"

namespace kvmesh {

// Copies are named by their slots, which the test never uses twice. Not thread safe.
class PrefixMapModel {
 public:
  struct Node {
    RootKey root;
    BlockKey parent;
    uint32_t index = 0;
    std::map<Tier, uint64_t> slots;
    uint64_t last_use = 0;
  };
  struct Copy {
    Tier tier = Tier::kDevice;
    BlockKey key;
    LossyFormats lossy_formats;
    bool attached = true;
    uint32_t pins = 0;
    uint32_t guards = 0;

    bool in_use() const { return pins + guards > 0; }
  };

  // What Add would answer.
  absl::StatusCode CheckAdd(const BlockHeader& header, uint32_t index, Tier tier) const {
    const auto known = nodes_.find(header.key);
    if (known != nodes_.end()) {
      const Node& node = known->second;
      if (node.parent != header.parent || node.root != header.root || node.index != index) {
        return absl::StatusCode::kInvalidArgument;
      }
      if (const auto held = node.slots.find(tier); held != node.slots.end()) {
        const LossyFormats theirs = copies_.at(held->second).lossy_formats;
        if (theirs.SubsetOf(header.lossy_formats)) return absl::StatusCode::kAlreadyExists;
        if (!header.lossy_formats.SubsetOf(theirs)) return absl::StatusCode::kFailedPrecondition;
      }
    }
    if (index == 0) {
      if (header.parent != RootAsParent(header.root)) return absl::StatusCode::kInvalidArgument;
    } else {
      const auto parent = nodes_.find(header.parent);
      if (parent == nodes_.end()) return absl::StatusCode::kFailedPrecondition;
      if (parent->second.root != header.root || parent->second.index + 1 != index) {
        return absl::StatusCode::kInvalidArgument;
      }
      if (!ParentAllows(tier, parent->second)) return absl::StatusCode::kFailedPrecondition;
    }
    return absl::StatusCode::kOk;
  }
  absl::StatusCode Add(const BlockHeader& header, uint32_t index, Tier tier, uint64_t slot) {
    const absl::StatusCode code = CheckAdd(header, index, tier);
    if (code != absl::StatusCode::kOk) return code;
    const bool known = nodes_.contains(header.key);
    Node& node = nodes_[header.key];
    if (!known) node = {header.root, header.parent, index, {}, ++uses_};
    if (const auto lossier = node.slots.find(tier); lossier != node.slots.end()) Detach(lossier->second);
    node.slots[tier] = slot;
    copies_[slot] = {tier, header.key, header.lossy_formats};
    return absl::StatusCode::kOk;
  }

  void Lose(uint64_t slot) {
    Detach(slot);
    Close();
  }
  void Erase(const BlockKey& key) {
    const std::map<Tier, uint64_t> slots = nodes_.at(key).slots;
    for (const auto& [tier, slot] : slots) Detach(slot);
    Close();
  }
  void EraseRoot(const RootKey& root) {
    std::vector<uint64_t> slots;
    for (const auto& [slot, copy] : copies_) {
      if (copy.attached && nodes_.at(copy.key).root == root) slots.push_back(slot);
    }
    for (const uint64_t slot : slots) Detach(slot);
    Close();
  }
  void Pin(uint64_t slot) { ++copies_.at(slot).pins; }
  void Unpin(uint64_t slot) {
    --copies_.at(slot).pins;
    FreeIfGone(slot);
  }
  void Guard(uint64_t slot) { ++copies_.at(slot).guards; }
  void Unguard(uint64_t slot) {
    --copies_.at(slot).guards;
    FreeIfGone(slot);
  }
  void Touch(const std::vector<BlockKey>& chain) {
    for (auto it = chain.rbegin(); it != chain.rend(); ++it) nodes_.at(*it).last_use = ++uses_;
  }

  static bool In(const Node& node, BlockSetKind set) {
    switch (set) {
      case BlockSetKind::kDevice:
        return node.slots.contains(Tier::kDevice);
      case BlockSetKind::kMemory:
        return node.slots.contains(Tier::kDevice) || node.slots.contains(Tier::kHost);
      case BlockSetKind::kDisk:
        break;
    }
    return node.slots.contains(Tier::kDisk);
  }
  // Those of the device's copy, for `memory` else of the host's; for `disk` of the disk's. REQUIRES: In.
  LossyFormats LossyIn(const Node& node, BlockSetKind set) const {
    Tier tier = Tier::kDevice;
    if (set == BlockSetKind::kMemory && !node.slots.contains(Tier::kDevice)) tier = Tier::kHost;
    if (set == BlockSetKind::kDisk) tier = Tier::kDisk;
    return copies_.at(node.slots.at(tier)).lossy_formats;
  }
  // True when the copy is not in use and no child would leave a set for want of it.
  bool CanEvict(uint64_t slot) const {
    const Copy& copy = copies_.at(slot);
    if (!copy.attached || copy.in_use()) return false;
    Node without = nodes_.at(copy.key);
    without.slots.erase(copy.tier);
    return std::all_of(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
      if (entry.second.parent != copy.key) return true;
      return std::all_of(entry.second.slots.begin(), entry.second.slots.end(),
                         [&](const auto& child) { return ParentAllows(child.first, without); });
    });
  }
  // The slot that should go next: for the device any leaf of its own set, since it may move to the host.
  std::optional<uint64_t> Victim(Tier tier) const {
    std::optional<uint64_t> victim;
    uint64_t oldest = 0;
    for (const auto& [slot, copy] : copies_) {
      if (copy.tier != tier || !copy.attached || copy.in_use()) continue;
      if (tier == Tier::kDevice ? HasChildIn(copy.key, BlockSetKind::kDevice) : !CanEvict(slot)) continue;
      const uint64_t use = nodes_.at(copy.key).last_use;
      if (victim && oldest <= use) continue;
      victim = slot;
      oldest = use;
    }
    return victim;
  }

  const std::map<BlockKey, Node>& nodes() const { return nodes_; }
  const std::map<uint64_t, Copy>& copies() const { return copies_; }
  // Slots given back so far.
  const std::set<uint64_t>& freed() const { return freed_; }

 private:
  static bool ParentAllows(Tier tier, const Node& parent) {
    switch (tier) {
      case Tier::kDevice:
        return In(parent, BlockSetKind::kDevice);
      case Tier::kHost:
        return In(parent, BlockSetKind::kMemory);
      case Tier::kDisk:
        break;
    }
    return In(parent, BlockSetKind::kDisk);
  }
  bool HasChildIn(const BlockKey& key, BlockSetKind set) const {
    return std::any_of(nodes_.begin(), nodes_.end(),
                       [&](const auto& entry) { return entry.second.parent == key && In(entry.second, set); });
  }
  void Detach(uint64_t slot) {
    Copy& copy = copies_.at(slot);
    nodes_.at(copy.key).slots.erase(copy.tier);
    copy.attached = false;
    FreeIfGone(slot);
  }
  void FreeIfGone(uint64_t slot) {
    const Copy& copy = copies_.at(slot);
    if (copy.attached || copy.in_use()) return;
    freed_.insert(slot);
    copies_.erase(slot);
  }
  // Drops what the rules no longer allow until nothing changes, then the blocks without copies.
  void Close() {
    for (bool changed = true; changed;) {
      changed = false;
      std::vector<uint64_t> orphans;
      for (const auto& [key, node] : nodes_) {
        if (node.index == 0) continue;
        for (const auto& [tier, slot] : node.slots) {
          if (!ParentAllows(tier, nodes_.at(node.parent))) orphans.push_back(slot);
        }
      }
      for (const uint64_t slot : orphans) Detach(slot);
      changed = !orphans.empty();
    }
    std::erase_if(nodes_, [](const auto& entry) { return entry.second.slots.empty(); });
  }

  std::map<BlockKey, Node> nodes_;
  std::map<uint64_t, Copy> copies_;  // attached, or in use
  std::set<uint64_t> freed_;
  uint64_t uses_ = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_KVSTORE_POOL_PREFIX_MAP_MODEL_H_
