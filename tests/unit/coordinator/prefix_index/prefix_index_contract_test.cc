// The contract of PrefixIndex, statement by statement.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/prefix_index/literal_prefix_index.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/block/set_digest.h"
#include "tests/unit/coordinator/prefix_index/model_index.h"

namespace kvmesh {
namespace {

constexpr LossyFormats kExact{};
constexpr LossyFormats kLossyA{1u << 3};
constexpr LossyFormats kLossyB{1u << 4};

RootKey Root(uint8_t n) {
  RootKey root;
  root.bytes.fill(n);
  return root;
}

// Keys of a chain with one token a block.
std::vector<BlockKey> Chain(const RootKey& root, const std::vector<uint32_t>& tokens) {
  return ComputeBlockKeys(RootAsParent(root), tokens, 1);
}

class PrefixIndexTest : public testing::Test {
 protected:
  absl::Status Store(WorkerSlot worker, IndexSet set, const std::vector<BlockKey>& chain, uint32_t first = 0,
                     LossyFormats lossy = kExact, const RootKey& root = Root(1)) {
    return index_.Stored(worker, set,
                         {.root = root,
                          .parent = first == 0 ? RootAsParent(root) : chain[first - 1],
                          .first_block = first,
                          .keys = std::span(chain).subspan(first),
                          .lossy_formats = lossy});
  }
  std::vector<PrefixMatch> Lookup(const std::vector<BlockKey>& keys, LossyFormats accepted = kExact, size_t top_k = 64,
                                  const RootKey& root = Root(1)) {
    std::vector<PrefixMatch> out;
    index_.Lookup({.root = root, .keys = keys, .accepted = accepted}, top_k, out);
    return out;
  }
  uint32_t Matched(WorkerSlot worker, IndexSet set, const std::vector<BlockKey>& keys, LossyFormats accepted = kExact) {
    for (const PrefixMatch& match : Lookup(keys, accepted)) {
      if (match.worker == worker) return match.in(set);
    }
    return 0;
  }

  LiteralPrefixIndex index_{PrefixIndexOptions{}};
  const WorkerSlot a_ = *index_.AddWorker();
  const WorkerSlot b_ = *index_.AddWorker();
  const std::vector<BlockKey> chain_ = Chain(Root(1), {1, 2, 3, 4, 5, 6});
};

TEST_F(PrefixIndexTest, EmptyIndexMatchesNothing) {
  EXPECT_TRUE(Lookup(chain_).empty());
  EXPECT_TRUE(Lookup({}).empty());
}

TEST_F(PrefixIndexTest, MatchIsTheLongestRunFromZeroPerSet) {
  ASSERT_TRUE(Store(a_, IndexSet::kMemory, chain_).ok());
  ASSERT_TRUE(Store(a_, IndexSet::kDevice, {chain_[0], chain_[1]}).ok());
  std::vector<BlockKey> other = Chain(Root(1), {1, 2, 3, 9, 9, 9});
  const auto matches = Lookup(other);
  ASSERT_EQ(matches.size(), 1u);
  EXPECT_EQ(matches[0].in(IndexSet::kDevice), 2u);
  EXPECT_EQ(matches[0].in(IndexSet::kMemory), 3u);
  EXPECT_EQ(matches[0].in(IndexSet::kDisk), 0u);
}

TEST_F(PrefixIndexTest, TopKIsExactAndBestSetFirst) {
  const WorkerSlot c = *index_.AddWorker();
  ASSERT_TRUE(Store(a_, IndexSet::kDisk, {chain_.begin(), chain_.begin() + 4}).ok());
  ASSERT_TRUE(Store(b_, IndexSet::kDevice, {chain_.begin(), chain_.begin() + 4}).ok());
  ASSERT_TRUE(Store(c, IndexSet::kDisk, chain_).ok());
  const auto matches = Lookup(chain_, kExact, 2);
  ASSERT_EQ(matches.size(), 2u);
  EXPECT_EQ(matches[0].worker, c);   // most tokens
  EXPECT_EQ(matches[1].worker, b_);  // as many as a, in a better set
}

TEST_F(PrefixIndexTest, RootOfTheQueryMustBeTheRootOfTheChain) {
  ASSERT_TRUE(Store(a_, IndexSet::kDevice, chain_).ok());
  EXPECT_TRUE(Lookup(chain_, kExact, 4, Root(2)).empty());
}

TEST_F(PrefixIndexTest, TruncationEndsHitsOnEveryBranchOfThatSetOnly) {
  const auto branch = Chain(Root(1), {1, 2, 7, 8});
  ASSERT_TRUE(Store(a_, IndexSet::kMemory, chain_).ok());
  ASSERT_TRUE(Store(a_, IndexSet::kMemory, branch, 2).ok());
  ASSERT_TRUE(Store(a_, IndexSet::kDisk, chain_).ok());
  ASSERT_TRUE(index_.Truncated(a_, IndexSet::kMemory, chain_[1]).ok());
  EXPECT_EQ(Matched(a_, IndexSet::kMemory, chain_), 1u);
  EXPECT_EQ(Matched(a_, IndexSet::kMemory, branch), 1u);
  EXPECT_EQ(Matched(a_, IndexSet::kDisk, chain_), 6u);
  EXPECT_EQ(index_.Count(a_, IndexSet::kMemory), 1u);
}

TEST_F(PrefixIndexTest, TruncationOfAnAbsentKeyIsNoError) {
  EXPECT_TRUE(index_.Truncated(a_, IndexSet::kMemory, chain_[1]).ok());
  EXPECT_EQ(index_.Digest(a_, IndexSet::kMemory)->count, 0u);
}

TEST_F(PrefixIndexTest, ParentThatTheWorkerLacksInThatSetRefusesTheEvent) {
  ASSERT_TRUE(Store(a_, IndexSet::kMemory, chain_).ok());
  EXPECT_EQ(Store(a_, IndexSet::kDisk, chain_, 2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Store(b_, IndexSet::kMemory, chain_, 2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(index_.Count(b_, IndexSet::kMemory), 0u);
}

TEST_F(PrefixIndexTest, KeyUnderAnotherParentIsRefusedWholeWhoeverReportsIt) {
  ASSERT_TRUE(Store(a_, IndexSet::kMemory, chain_).ok());
  // The first block is fine, the second is known under another parent.
  const auto other = Chain(Root(1), {9});
  EXPECT_EQ(Store(b_, IndexSet::kMemory, {other[0], chain_[3]}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(index_.Count(b_, IndexSet::kMemory), 0u);
  EXPECT_EQ(index_.Stats().blocks, 6u);
  // Under another root.
  EXPECT_EQ(Store(b_, IndexSet::kMemory, chain_, 0, kExact, Root(2)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(index_.Stats().blocks, 6u);
}

TEST_F(PrefixIndexTest, MalformedRunsAreRefused) {
  EXPECT_EQ(Store(a_, IndexSet::kDevice, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Store(a_, IndexSet::kDevice, {chain_[0], chain_[1], chain_[0]}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(index_.Stats().blocks, 0u);
  ASSERT_TRUE(Store(a_, IndexSet::kDevice, {chain_[0]}).ok());
  const StoredRun wrong_position = {
      .root = Root(1), .parent = chain_[0], .first_block = 2, .keys = std::span(chain_).subspan(2)};
  EXPECT_EQ(index_.Stored(a_, IndexSet::kDevice, wrong_position).code(), absl::StatusCode::kInvalidArgument);
  const StoredRun wrong_root = {
      .root = Root(2), .parent = chain_[0], .first_block = 1, .keys = std::span(chain_).subspan(1)};
  EXPECT_EQ(index_.Stored(a_, IndexSet::kDevice, wrong_root).code(), absl::StatusCode::kInvalidArgument);
  const StoredRun not_the_root = {.root = Root(2), .parent = chain_[0], .first_block = 0, .keys = chain_};
  EXPECT_EQ(index_.Stored(a_, IndexSet::kDevice, not_the_root).code(), absl::StatusCode::kInvalidArgument);
  const StoredRun too_far = {
      .root = Root(1), .parent = chain_[0], .first_block = 0xffffffff, .keys = std::span(chain_).subspan(1)};
  EXPECT_EQ(index_.Stored(a_, IndexSet::kDevice, too_far).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(index_.Stats().blocks, 1u);
}

TEST_F(PrefixIndexTest, StoringTwiceChangesNothing) {
  ASSERT_TRUE(Store(a_, IndexSet::kDevice, chain_).ok());
  const SetSummary once = *index_.Digest(a_, IndexSet::kDevice);
  ASSERT_TRUE(Store(a_, IndexSet::kDevice, chain_).ok());
  EXPECT_EQ(*index_.Digest(a_, IndexSet::kDevice), once);
  EXPECT_EQ(index_.Stats().copies, 6u);
}

TEST_F(PrefixIndexTest, LossyCopyCountsOnlyWhenAcceptedAlongTheWholePath) {
  ASSERT_TRUE(Store(a_, IndexSet::kMemory, {chain_[0], chain_[1]}).ok());
  ASSERT_TRUE(Store(a_, IndexSet::kMemory, {chain_.begin(), chain_.begin() + 4}, 2, kLossyA).ok());
  ASSERT_TRUE(Store(a_, IndexSet::kMemory, chain_, 4, kExact).ok());
  EXPECT_EQ(Matched(a_, IndexSet::kMemory, chain_), 2u);
  EXPECT_EQ(Matched(a_, IndexSet::kMemory, chain_, kLossyB), 2u);
  EXPECT_EQ(Matched(a_, IndexSet::kMemory, chain_, kLossyA), 6u);
  EXPECT_EQ(Matched(a_, IndexSet::kMemory, chain_, kLossyA.Union(kLossyB)), 6u);
}

TEST_F(PrefixIndexTest, ExactCopyReplacesALossyOne) {
  ASSERT_TRUE(Store(a_, IndexSet::kMemory, {chain_[0], chain_[1]}, 0, kLossyA).ok());
  ASSERT_TRUE(Store(a_, IndexSet::kMemory, chain_, 2, kExact).ok());
  EXPECT_EQ(Matched(a_, IndexSet::kMemory, chain_), 0u);
  ASSERT_TRUE(Store(a_, IndexSet::kMemory, {chain_[0], chain_[1]}, 0, kExact).ok());
  EXPECT_EQ(Matched(a_, IndexSet::kMemory, chain_), 6u);
  ModelSet model;
  model.Store({.root = Root(1), .parent = RootAsParent(Root(1)), .keys = chain_});
  EXPECT_TRUE(index_.CheckDigest(a_, IndexSet::kMemory, model.Summary()).ok());
}

TEST_F(PrefixIndexTest, ClearedTouchesOneSet) {
  ASSERT_TRUE(Store(a_, IndexSet::kMemory, chain_).ok());
  ASSERT_TRUE(Store(a_, IndexSet::kDisk, chain_).ok());
  ASSERT_TRUE(index_.Cleared(a_, IndexSet::kMemory).ok());
  EXPECT_EQ(Matched(a_, IndexSet::kMemory, chain_), 0u);
  EXPECT_EQ(Matched(a_, IndexSet::kDisk, chain_), 6u);
  EXPECT_EQ(*index_.Digest(a_, IndexSet::kMemory), SetSummary());
  EXPECT_EQ(index_.Stats().copies, 6u);
}

TEST_F(PrefixIndexTest, RemovedWorkerIsGoneAndItsMemoryIsFreed) {
  ASSERT_TRUE(Store(a_, IndexSet::kMemory, chain_).ok());
  ASSERT_TRUE(Store(b_, IndexSet::kMemory, {chain_[0]}).ok());
  index_.RemoveWorker(a_);
  EXPECT_EQ(Lookup(chain_).size(), 1u);
  EXPECT_EQ(index_.Stats().blocks, 1u);
  EXPECT_EQ(Store(a_, IndexSet::kMemory, chain_).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(index_.Digest(a_, IndexSet::kMemory).status().code(), absl::StatusCode::kNotFound);
  index_.RemoveWorker(a_);  // again: ignored
  index_.RemoveWorker(b_);
  EXPECT_EQ(index_.Stats().blocks, 0u);
  EXPECT_EQ(index_.Stats().copies, 0u);
  EXPECT_EQ(index_.Stats().bytes, 0u);
}

TEST_F(PrefixIndexTest, SlotsAreBoundedAndReused) {
  LiteralPrefixIndex index({.max_bytes = 1 << 20, .max_workers = 2});
  const WorkerSlot first = *index.AddWorker();
  ASSERT_TRUE(index.AddWorker().ok());
  EXPECT_EQ(index.AddWorker().status().code(), absl::StatusCode::kResourceExhausted);
  index.RemoveWorker(first);
  EXPECT_EQ(*index.AddWorker(), first);
}

TEST_F(PrefixIndexTest, SnapshotIsInvisibleUntilItIsCommittedWhole) {
  ASSERT_TRUE(Store(a_, IndexSet::kMemory, {chain_[0], chain_[1], chain_[2]}).ok());
  ASSERT_TRUE(index_.BeginSnapshot(a_).ok());
  const StoredRun run = {.root = Root(1), .parent = RootAsParent(Root(1)), .keys = chain_};
  ASSERT_TRUE(index_.ApplyToSnapshot(a_, IndexSet::kDisk, run).ok());
  EXPECT_EQ(Matched(a_, IndexSet::kDisk, chain_), 0u);
  // The visible generation takes removals only.
  EXPECT_EQ(Store(a_, IndexSet::kMemory, chain_, 3).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(index_.Truncated(a_, IndexSet::kMemory, chain_[1]).ok());
  EXPECT_EQ(Matched(a_, IndexSet::kMemory, chain_), 1u);

  SetSummaries expected;
  EXPECT_EQ(index_.CommitSnapshot(a_, expected).code(), absl::StatusCode::kDataLoss);
  ModelSet model;
  model.Store(run);
  expected[IndexOf(IndexSet::kDisk)] = model.Summary();
  ASSERT_TRUE(index_.CommitSnapshot(a_, expected).ok());
  EXPECT_EQ(Matched(a_, IndexSet::kMemory, chain_), 0u);
  EXPECT_EQ(Matched(a_, IndexSet::kDisk, chain_), 6u);
  EXPECT_EQ(index_.Stats().copies, 6u);
  EXPECT_EQ(index_.ApplyToSnapshot(a_, IndexSet::kDisk, run).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(index_.CommitSnapshot(a_, expected).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PrefixIndexTest, AbortedOrRestartedSnapshotLeavesNothing) {
  const StoredRun run = {.root = Root(1), .parent = RootAsParent(Root(1)), .keys = chain_};
  ASSERT_TRUE(index_.BeginSnapshot(a_).ok());
  ASSERT_TRUE(index_.ApplyToSnapshot(a_, IndexSet::kDisk, run).ok());
  ASSERT_TRUE(index_.BeginSnapshot(a_).ok());
  ASSERT_TRUE(index_.ApplyToSnapshot(a_, IndexSet::kDisk, run).ok());
  index_.AbortSnapshot(a_);
  EXPECT_EQ(index_.Stats().copies, 0u);
  EXPECT_EQ(index_.Stats().blocks, 0u);
  EXPECT_TRUE(Store(a_, IndexSet::kMemory, chain_).ok());
}

TEST_F(PrefixIndexTest, BudgetShedsVisiblyAndDigestsFollowTheStream) {
  LiteralPrefixIndex index({.max_bytes = 4 * BlockTree::kNodeBytes, .max_workers = 4});
  const WorkerSlot worker = *index.AddWorker();
  const StoredRun run = {.root = Root(1), .parent = RootAsParent(Root(1)), .keys = chain_};
  ModelSet model;
  ASSERT_TRUE(index.Stored(worker, IndexSet::kMemory, run).ok());
  model.Store(run);
  EXPECT_EQ(index.Count(worker, IndexSet::kMemory), 3u);  // and the root
  EXPECT_EQ(index.Stats().shed_blocks, 3u);
  EXPECT_LE(index.Stats().bytes, 4 * BlockTree::kNodeBytes);
  EXPECT_TRUE(index.CheckDigest(worker, IndexSet::kMemory, model.Summary()).ok());
  SetSummary wrong = model.Summary();
  ++wrong.count;
  EXPECT_EQ(index.CheckDigest(worker, IndexSet::kMemory, wrong).code(), absl::StatusCode::kDataLoss);

  // Below shed coverage: the parent is not known here, and that is no protocol error.
  const auto longer = Chain(Root(1), {1, 2, 3, 4, 5, 6, 7});
  const StoredRun more = {.root = Root(1), .parent = chain_[5], .first_block = 6, .keys = std::span(longer).subspan(6)};
  ASSERT_TRUE(index.Stored(worker, IndexSet::kMemory, more).ok());
  model.Store(more);
  EXPECT_EQ(index.Stats().shed_blocks, 4u);
  EXPECT_TRUE(index.CheckDigest(worker, IndexSet::kMemory, model.Summary()).ok());

  // A removal that reaches shed blocks: the worker's next digest is adopted, the one after is compared.
  ASSERT_TRUE(index.Truncated(worker, IndexSet::kMemory, chain_[1]).ok());
  model.Truncate(chain_[1]);
  EXPECT_TRUE(index.CheckDigest(worker, IndexSet::kMemory, model.Summary()).ok());
  EXPECT_EQ(index.Stats().adopted_digests, 1u);
  EXPECT_TRUE(index.CheckDigest(worker, IndexSet::kMemory, model.Summary()).ok());
  EXPECT_EQ(index.CheckDigest(worker, IndexSet::kMemory, wrong).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(index.Stats().adopted_digests, 1u);
}

TEST(PrefixIndexOptionsTest, LimitsMustBePositive) {
  EXPECT_EQ((PrefixIndexOptions{.max_bytes = 0}).Validate().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((PrefixIndexOptions{.max_workers = 0}).Validate().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(PrefixIndexOptions().Validate().ok());
}

}  // namespace
}  // namespace kvmesh
