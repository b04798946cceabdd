// Compares what a block store's events tell with the cuts that it takes.
#ifndef KVMESH_TESTS_UNIT_KVSTORE_TIERS_CUT_CHECKS_H_
#define KVMESH_TESTS_UNIT_KVSTORE_TIERS_CUT_CHECKS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>

#include "kvstore/tiers/block_store.h"
#include "tests/support/set_replay.h"

namespace kvmesh {

// Applies what `replay` lacks up to `until`.
inline void CatchUp(BlockStore& store, uint64_t until, SetReplay& replay) {
  while (replay.sequence() < until) {
    const auto events =
        store.events().ReadAfter(replay.sequence(), std::min<uint64_t>(until - replay.sequence(), 1000));
    ASSERT_TRUE(events.ok()) << events.status();
    ASSERT_FALSE(events->empty());
    for (const StoreEvent& event : *events) replay.Apply(event);
  }
}

// The cut is what its events make: same blocks in each set, parents first, same digests.
inline void ExpectCutEquals(const BlockStore::Cut& cut, const SetReplay& replay) {
  std::array<SetReplay::Set, 3> sets;
  std::map<BlockKey, uint32_t> indexes;
  for (const BlockStore::CutBlock& block : cut.blocks) {
    EXPECT_TRUE(indexes.emplace(block.key, block.index).second) << "block " << block.key.ToHex() << " stands twice";
    if (block.index == 0) {
      EXPECT_EQ(block.parent, RootAsParent(block.root));
    } else {
      ASSERT_TRUE(indexes.contains(block.parent)) << "a child stands before its parent";
      EXPECT_EQ(indexes[block.parent] + 1, block.index);
    }
    bool in_any = false;
    for (size_t set = 0; set < 3; ++set) {
      if (!block.lossy_formats[set]) continue;
      in_any = true;
      sets[set][block.key] = {block.parent, *block.lossy_formats[set]};
    }
    EXPECT_TRUE(in_any);
  }
  for (const BlockSetKind set : kAllSets) {
    EXPECT_EQ(sets[static_cast<size_t>(set)], replay.set(set));
    EXPECT_EQ(cut.digests[static_cast<size_t>(set)], replay.Digest(set));
  }
}

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_KVSTORE_TIERS_CUT_CHECKS_H_
