// The oracle of the prefix index: maps and linear walks, nothing clever.
#ifndef KVMESH_TESTS_UNIT_COORDINATOR_PREFIX_INDEX_MODEL_INDEX_H_
#define KVMESH_TESTS_UNIT_COORDINATOR_PREFIX_INDEX_MODEL_INDEX_H_

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "coordinator/prefix_index/prefix_index.h"
#include "kvstore/block/set_digest.h"

namespace kvmesh {

// One set of one worker.
class ModelSet {
 public:
  struct Block {
    BlockKey parent;
    LossyFormats lossy_formats;
  };

  bool Has(const BlockKey& key) const { return blocks_.contains(key); }
  void Store(const StoredRun& run) {
    BlockKey parent = run.parent;
    for (const BlockKey& key : run.keys) {
      blocks_[key] = {parent, run.lossy_formats};
      parent = key;
    }
  }
  void Truncate(const BlockKey& key) {
    if (blocks_.erase(key) == 0) return;
    std::vector<BlockKey> children;
    for (const auto& [child, block] : blocks_) {
      if (block.parent == key) children.push_back(child);
    }
    for (const BlockKey& child : children) Truncate(child);
  }
  void Clear() { blocks_.clear(); }

  uint32_t Match(const PrefixQuery& query) const {
    uint32_t matched = 0;
    BlockKey parent = RootAsParent(query.root);
    for (const BlockKey& key : query.keys) {
      const auto it = blocks_.find(key);
      if (it == blocks_.end() || it->second.parent != parent) break;
      if (!it->second.lossy_formats.SubsetOf(query.accepted)) break;
      parent = key;
      ++matched;
    }
    return matched;
  }
  SetSummary Summary() const {
    SetDigest digest;
    for (const auto& [key, block] : blocks_) digest.Add(SetMember(block.parent, key, block.lossy_formats));
    return {.sum = *DigestSum::FromBytes(digest.SumBytes()), .count = digest.count()};
  }
  const std::map<BlockKey, Block>& blocks() const { return blocks_; }

 private:
  std::map<BlockKey, Block> blocks_;
};

using ModelWorker = std::array<ModelSet, kIndexSets>;

// Workers by slot number.
class ModelIndex {
 public:
  std::map<uint32_t, ModelWorker> workers;

  std::vector<PrefixMatch> Lookup(const PrefixQuery& query, size_t top_k) const {
    std::vector<PrefixMatch> out;
    for (const auto& [slot, sets] : workers) {
      PrefixMatch match{.worker = WorkerSlot(slot)};
      for (const IndexSet set : kAllIndexSets) match.blocks[IndexOf(set)] = sets[IndexOf(set)].Match(query);
      if (match.longest() > 0) out.push_back(match);
    }
    std::sort(out.begin(), out.end(), [](const PrefixMatch& a, const PrefixMatch& b) {
      if (a.longest() != b.longest()) return a.longest() > b.longest();
      for (const IndexSet set : kAllIndexSets) {
        if (a.in(set) != b.in(set)) return a.in(set) > b.in(set);
      }
      return a.worker < b.worker;
    });
    if (out.size() > top_k) out.resize(top_k);
    return out;
  }
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_COORDINATOR_PREFIX_INDEX_MODEL_INDEX_H_
