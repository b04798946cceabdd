#include "coordinator/registry/usable_boundaries.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/block_content.h"

namespace kvmesh {
namespace {

class UsableBoundariesTest : public testing::Test {
 protected:
  const std::vector<BlockKey> chain_ = TestChain(TestRoot(1), 0, 8);
  const std::vector<BlockKey> other_ = TestChain(TestRoot(1), 1, 8);
  UsableBoundaries boundaries_;
};

TEST_F(UsableBoundariesTest, TheLongestOneAlongTheChainIsFound) {
  EXPECT_EQ(boundaries_.Longest(chain_), 0u);
  EXPECT_EQ(boundaries_.Add(std::vector{chain_[1], chain_[4], other_[6]}), 0u);
  EXPECT_EQ(boundaries_.Longest(chain_), 5u);
  EXPECT_EQ(boundaries_.Longest(std::span(chain_).first(4)), 2u);
  EXPECT_EQ(boundaries_.Longest(std::span(chain_).first(1)), 0u);
  EXPECT_EQ(boundaries_.Longest({}), 0u);
  boundaries_.Remove(std::vector{chain_[4], chain_[5]});
  EXPECT_EQ(boundaries_.Longest(chain_), 2u);
  EXPECT_EQ(boundaries_.size(), 2u);
  boundaries_.Clear();
  EXPECT_EQ(boundaries_.Longest(chain_), 0u);
}

TEST_F(UsableBoundariesTest, ASnapshotIsHiddenUntilItIsWhole) {
  boundaries_.Add(std::vector{chain_[1]});
  boundaries_.ResetSnapshot();
  boundaries_.AddToSnapshot(std::vector{chain_[3]});
  EXPECT_EQ(boundaries_.Longest(chain_), 2u);
  boundaries_.ResetSnapshot();
  boundaries_.AddToSnapshot(std::vector{chain_[5]});
  boundaries_.CommitSnapshot();
  EXPECT_EQ(boundaries_.Longest(chain_), 6u);
  EXPECT_EQ(boundaries_.size(), 1u);
}

TEST_F(UsableBoundariesTest, TheBoundRefusesAndCounts) {
  UsableBoundaries few(3);
  EXPECT_EQ(few.Add(std::span(chain_).first(2)), 0u);
  EXPECT_EQ(few.Add(chain_), 5u);
  EXPECT_EQ(few.size(), 3u);
  EXPECT_EQ(few.Longest(chain_), 3u);
  EXPECT_EQ(few.AddToSnapshot(chain_), 5u);
}

}  // namespace
}  // namespace kvmesh
