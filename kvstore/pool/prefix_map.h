// Chains of sealed blocks on one worker: which tier holds a copy of each, who pins it, and which may go.
//
// Blocks of layer groups above 0 stand beside the chain: each hangs under its root alone, whatever its index, so that
// any of them may come and go. They are in no set of the chain's: no digest counts them.
//
// Invariants, after every method:
//   - A node has at least one attached copy; a root node stands for an identity and has at least one child.
//   - device set: nodes with a device copy. Their parents have one too (a root counts as having all).
//   - memory set: nodes with a device or a host copy. Their parents have one or the other.
//   - disk set: nodes with a disk copy. Their parents have one.
//   - Copies of one block may differ in their lossy formats. A set has those of the copy that speaks for it: the device
//     copy's before the host copy's in the memory set.
//   - A pinned or guarded copy is never offered as a victim. A copy that leaves its set meanwhile is detached: no
//   longer
//     findable, its storage returned through `CopyStorage` when its last pin or guard drops.
//   - Every change of a set is told to the observer, in order, and is in that set's digest.
#ifndef KVMESH_KVSTORE_POOL_PREFIX_MAP_H_
#define KVMESH_KVSTORE_POOL_PREFIX_MAP_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kvstore/base/status.h"
#include "kvstore/block/block_header.h"
#include "kvstore/block/set_digest.h"
#include "kvstore/pool/eviction_policy.h"

namespace kvmesh {

// Storage levels of one worker, fastest first.
enum class Tier : uint8_t { kDevice = 0, kHost = 1, kDisk = 2 };
inline constexpr std::array<Tier, 3> kAllTiers = {Tier::kDevice, Tier::kHost, Tier::kDisk};

// The three prefix-closed sets.
enum class BlockSetKind : uint8_t { kDevice = 0, kMemory = 1, kDisk = 2 };
inline constexpr std::array<BlockSetKind, 3> kAllSets = {BlockSetKind::kDevice, BlockSetKind::kMemory,
                                                         BlockSetKind::kDisk};

struct BlockNode;

// One tier's copy of a block.
struct BlockCopy {
  BlockHeader header;
  Tier tier = Tier::kDevice;
  uint64_t slot = 0;
  uint32_t pins = 0;
  uint32_t guards = 0;
  BlockNode* node = nullptr;            // null once detached
  unsigned __int128 digest_member = 0;  // of a set that this copy speaks for
  EvictionEntry eviction;

  bool in_use() const { return pins > 0 || guards > 0; }
};

struct BlockNode {
  RootKey root;
  BlockKey key;         // found under; of the chain or of its group
  BlockKey chain_key;   // in the chain, or of the chain's block that it stands beside
  BlockKey parent_key;  // of chain_key in the chain; block 0: the root
  uint32_t index = 0;   // in the chain
  uint32_t group = 0;   // layer group
  bool is_root = false;
  BlockNode* parent = nullptr;
  BlockNode* first_child = nullptr;
  BlockNode* previous_sibling = nullptr;
  BlockNode* next_sibling = nullptr;
  std::array<uint32_t, 3> children_in{};             // by set
  std::array<std::unique_ptr<BlockCopy>, 3> copies;  // by tier
  uint64_t last_use = 0;

  BlockCopy* copy(Tier tier) const { return copies[static_cast<size_t>(tier)].get(); }
  // The copy whose lossy formats the set has; null when the node is not in it, and for roots.
  const BlockCopy* CopyFor(BlockSetKind set) const;
  bool In(BlockSetKind set) const { return is_root || CopyFor(set) != nullptr; }
  // In the set, by a copy whose lossy formats are all accepted.
  bool HitIn(BlockSetKind set, LossyFormats accepted) const;
};

// Sees every change of the sets, in order, while the map is being changed.
class SetObserver {
 public:
  virtual ~SetObserver() = default;
  // The node joined the set, or is in it with other lossy formats than before: those of CopyFor(set).
  virtual void OnStored(BlockSetKind set, const BlockNode& node) = 0;
  // The node and all its descendants left the set.
  virtual void OnTruncated(BlockSetKind set, const BlockNode& node) = 0;
  // A node beside the chain has an exact copy now that a lookup finds, or has none any more.
  virtual void OnBeside(const BlockNode& node, bool held) = 0;
};

// Takes back the storage of copies that are gone.
class CopyStorage {
 public:
  virtual ~CopyStorage() = default;
  virtual void Free(Tier tier, uint64_t slot) = 0;
};

// Not thread safe: the owner serializes all calls (kvstore/tiers/block_store.h).
class PrefixMap {
 public:
  // Neither is owned; both outlive the map. `policy` makes one policy per tier.
  PrefixMap(SetObserver& observer, CopyStorage& storage, const EvictionPolicyFactory& policy);
  // REQUIRES: no copy is pinned or guarded.
  ~PrefixMap();

  // The node of `key`, or null. Stable until a method that removes copies runs.
  BlockNode* Find(const BlockKey& key) const;
  // The root node of an identity, or null when it has no block.
  BlockNode* FindRoot(const RootKey& root) const;

  // Attaches a copy and owns `slot` from then on. It takes the place of a copy of the tier that has all of its lossy
  // formats and more; that one is detached, and the node's descendants stay. FAILED_PRECONDITION: the parent is not in
  // the set that the copy would join, or the tier holds a copy with other lossy formats, neither more nor fewer.
  // ALREADY_EXISTS: the tier has a copy that is as good. INVALID_ARGUMENT: the key is known under another parent, root
  // or index. On error the slot stays the caller's.
  absl::StatusOr<BlockNode*> Add(const BlockHeader& header, uint32_t index, Tier tier, uint64_t slot);

  // Evicts one copy. REQUIRES: attached, not in use, and no child depends on it (CanEvict).
  void Evict(BlockCopy* copy);
  bool CanEvict(const BlockCopy& copy) const;
  // A copy was lost or is wrong: it and every copy that depended on it leave their sets at once.
  void Lose(BlockCopy* copy);
  // Makes a node and all its descendants unfindable in every tier.
  void Erase(BlockNode* node);

  void Pin(BlockCopy* copy);
  // May free the copy when it is detached.
  void Unpin(BlockCopy* copy);
  // The same for the owner's own copying of bytes: not counted as pinned.
  void Guard(BlockCopy* copy);
  void Unguard(BlockCopy* copy);

  // Marks the nodes as used now; the first of the chain counts as the most recent, so that leaves go first.
  void Touch(std::span<BlockNode* const> chain);
  // The copy that should leave the tier next, or null when every one is in use or has dependants.
  BlockCopy* Victim(Tier tier) const;

  const SetDigest& digest(BlockSetKind set) const { return digests_[static_cast<size_t>(set)]; }
  // Distinct copies of the tier with at least one pin, detached ones included.
  uint64_t pinned(Tier tier) const { return pinned_counts_[static_cast<size_t>(tier)]; }

  // Blocks with a copy in any tier.
  size_t size() const { return nodes_.size(); }
  // Every node, parents before children, roots left out.
  void ForEachParentsFirst(const std::function<void(const BlockNode&)>& visit) const;

 private:
  using NodeMap = absl::flat_hash_map<BlockKey, std::unique_ptr<BlockNode>>;

  // How a node stands in one set.
  struct Standing {
    bool in = false;
    LossyFormats lossy_formats;
    unsigned __int128 digest_member = 0;
  };
  using Standings = std::array<Standing, 3>;  // by set

  // The parent that `header` names, made when it is a new root.
  absl::StatusOr<BlockNode*> ParentFor(const BlockHeader& header, uint32_t index);
  absl::Status CheckNode(const BlockNode& node, const BlockHeader& header, uint32_t index, Tier tier) const;
  BlockNode* NewNode(const BlockKey& key, const BlockHeader& header, uint32_t index, BlockNode* parent);
  void Attach(const BlockHeader& header, Tier tier, uint64_t slot, BlockNode* node);
  void Detach(BlockCopy* copy);
  static Standings StandingsOf(const BlockNode& node);
  static bool HeldExactly(const Standings& standings);
  // Follows a loss of copies at `node`: whatever the closure of a set no longer allows leaves it, top down.
  void Cascade(BlockNode* node, const Standings& before);
  // Tells observer, digest and parent how `node` stands otherwise than `before`. True when it left a set.
  bool NoteChange(BlockNode* node, const Standings& before);
  void RemoveIfEmpty(BlockNode* node);
  // A pin or guard was the first, or the last.
  void UseChanged(BlockCopy* copy);
  bool IsCandidate(const BlockCopy& copy) const;
  void RefreshCandidates(BlockNode* node);

  SetObserver& observer_;
  CopyStorage& storage_;
  std::array<std::unique_ptr<EvictionPolicy>, 3> policies_;
  NodeMap nodes_;
  NodeMap roots_;
  uint64_t use_counter_ = 0;
  std::array<SetDigest, 3> digests_;
  std::array<uint64_t, 3> pinned_counts_{};
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_POOL_PREFIX_MAP_H_
