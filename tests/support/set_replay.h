// Rebuilds a worker's three sets from the changes it tells: what a coordinator would believe.
#ifndef KVMESH_TESTS_SUPPORT_SET_REPLAY_H_
#define KVMESH_TESTS_SUPPORT_SET_REPLAY_H_

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "kvstore/pool/prefix_map.h"
#include "kvstore/tiers/event_log.h"

namespace kvmesh {

// Fails the test when a change breaks the rules of a report: a block is stored once, after its parent, and again only
// with other lossy formats; it is truncated only while it is held. Not thread safe.
class SetReplay {
 public:
  struct Member {
    BlockKey parent;
    LossyFormats lossy_formats;
    friend bool operator==(const Member&, const Member&) = default;
  };
  using Set = std::map<BlockKey, Member>;

  void Stored(BlockSetKind kind, const RootKey& root, const BlockKey& parent, const BlockKey& key, LossyFormats lossy) {
    Set& set = sets_[static_cast<size_t>(kind)];
    EXPECT_TRUE(parent == RootAsParent(root) || set.contains(parent)) << "stored before its parent: " << key.ToHex();
    const Member member{parent, lossy};
    const auto [held, added] = set.emplace(key, member);
    if (!added) {
      EXPECT_EQ(held->second.parent, parent) << "stored again under another parent: " << key.ToHex();
      EXPECT_NE(held->second.lossy_formats, lossy) << "stored twice: " << key.ToHex();
      held->second = member;
    }
    children_[static_cast<size_t>(kind)][parent].insert(key);
  }

  // The block and all its descendants leave the set.
  void Truncated(BlockSetKind kind, const BlockKey& key) {
    Set& set = sets_[static_cast<size_t>(kind)];
    auto& children = children_[static_cast<size_t>(kind)];
    const auto held = set.find(key);
    ASSERT_NE(held, set.end()) << "truncated while not held: " << key.ToHex();
    children[held->second.parent].erase(key);
    std::vector<BlockKey> stack = {key};
    while (!stack.empty()) {
      const BlockKey gone = stack.back();
      stack.pop_back();
      set.erase(gone);
      if (const auto below = children.find(gone); below != children.end()) {
        stack.insert(stack.end(), below->second.begin(), below->second.end());
        children.erase(below);
      }
    }
  }

  // Checks that `event` is the next one, and applies it; a digest event must match what was applied.
  void Apply(const StoreEvent& event) {
    EXPECT_EQ(event.sequence, sequence_ + 1);
    sequence_ = event.sequence;
    switch (event.kind) {
      case StoreEvent::Kind::kStored:
        return Stored(event.set, event.root, event.parent, event.key, event.lossy_formats);
      case StoreEvent::Kind::kTruncated:
        return Truncated(event.set, event.key);
      case StoreEvent::Kind::kDigest:
        EXPECT_EQ(event.digest, Digest(event.set)) << "at sequence " << event.sequence;
        return;
      case StoreEvent::Kind::kUsable:
      case StoreEvent::Kind::kUnusable:
        return;  // of no set
    }
    ADD_FAILURE() << "event of an unknown kind";
  }

  const Set& set(BlockSetKind kind) const { return sets_[static_cast<size_t>(kind)]; }
  uint64_t sequence() const { return sequence_; }

  // Summed over the set anew.
  SetDigest Digest(BlockSetKind kind) const {
    SetDigest digest;
    for (const auto& [key, member] : set(kind)) digest.Add(SetMember(member.parent, key, member.lossy_formats));
    return digest;
  }

 private:
  std::array<Set, 3> sets_;
  std::array<std::map<BlockKey, std::set<BlockKey>>, 3> children_;
  uint64_t sequence_ = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SUPPORT_SET_REPLAY_H_
