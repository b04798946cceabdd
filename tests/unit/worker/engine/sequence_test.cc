#include "worker/engine/sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/unit/worker/engine/sequence_world.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

class SequenceTest : public testing::Test {
 protected:
  uint64_t private_blocks() { return world_.store->GetBooks().private_blocks; }

  SequenceWorld world_{{.device_slots = 32, .max_pinned_fraction = 1.0}};
};

TEST_F(SequenceTest, BlocksAreSealedWhenAllLayersAreWritten) {
  std::unique_ptr<Sequence> sequence = world_.NewSequence(TokensFrom(0, 40));
  world_.Append(*sequence, 0, 40, 0, 1);
  EXPECT_EQ(sequence->ready(), 0u);
  EXPECT_EQ(sequence->written(0), 40u);
  EXPECT_EQ(world_.Lookup(sequence->keys())[0], 0u);

  world_.Append(*sequence, 0, 15, 1, 1);
  EXPECT_EQ(sequence->ready(), 15u);
  EXPECT_EQ(world_.Lookup(sequence->keys())[0], 0u);
  world_.Append(*sequence, 15, 2, 1, 1);
  EXPECT_EQ(world_.Lookup(sequence->keys())[0], 1u);
  world_.Append(*sequence, 17, 23, 1, 1);
  EXPECT_EQ(sequence->ready(), 40u);
  EXPECT_EQ(world_.Lookup(sequence->keys())[0], 2u);
  EXPECT_EQ(private_blocks(), 1u);  // the partial tail
  EXPECT_TRUE(world_.HoldsItsTokens(*sequence));
}

TEST_F(SequenceTest, ALayerMayNotLeaveAGap) {
  std::unique_ptr<Sequence> sequence = world_.NewSequence(TokensFrom(0, 40));
  world_.Append(*sequence, 0, 10, 0, 1);
  EXPECT_THAT(sequence->PrepareSlots(10, 1, 1, 1, kNoDeadline).status().ToString(),
              HasSubstr("start_position: 10 leaves a gap"));
  EXPECT_THAT(sequence->PrepareSlots(10, 1, kNoDeadline).status().ToString(), HasSubstr("gap after position 0"));
  EXPECT_TRUE(sequence->PrepareSlots(10, 1, 0, 1, kNoDeadline).ok());
  EXPECT_THAT(sequence->PrepareSlots(10, 31, 0, 1, kNoDeadline).status().ToString(),
              HasSubstr("beyond the 40 known tokens"));
  EXPECT_TRUE(absl::IsInvalidArgument(sequence->PrepareSlots(~uint64_t{0}, 2, kNoDeadline).status()));
}

TEST_F(SequenceTest, PositionsThatAreReadyHaveNoSlot) {
  std::unique_ptr<Sequence> sequence = world_.NewSequence(TokensFrom(0, 20));
  world_.Append(*sequence, 0, 18);
  const absl::StatusOr<Sequence::GroupSlots> slots = sequence->PrepareSlots(15, 5, kNoDeadline);
  ASSERT_TRUE(slots.ok());
  const int64_t tail = int64_t{sequence->table(0).ids()[1]} * kTestBlockTokens;
  EXPECT_EQ(*slots, (Sequence::GroupSlots{{-1, -1, -1, tail + 2, tail + 3}}));
}

TEST_F(SequenceTest, TheLastTokenIsAlwaysComputed) {
  EXPECT_EQ(world_.NewSequence({})->computed_tokens(), 0u);
  std::unique_ptr<Sequence> first = world_.NewSequence(TokensFrom(0, 33));
  world_.AppendAll(*first);
  EXPECT_EQ(world_.Resumed(TokensFrom(0, 33))->computed_tokens(), 32u);

  std::unique_ptr<Sequence> whole = world_.Resumed(TokensFrom(0, 32));
  EXPECT_EQ(whole->ready(), 32u);
  EXPECT_EQ(whole->computed_tokens(), 31u);
  EXPECT_EQ(*whole->PrepareSlots(31, 1, kNoDeadline), (Sequence::GroupSlots{{-1}}));
  EXPECT_EQ(world_.Resumed(TokensFrom(0, 1))->computed_tokens(), 0u);
}

TEST_F(SequenceTest, AResumedPrefixIsTheSealedOneAndGrows) {
  std::unique_ptr<Sequence> first = world_.NewSequence(TokensFrom(0, 40));
  world_.AppendAll(*first);
  std::unique_ptr<Sequence> second = world_.Resumed(TokensFrom(0, 48));
  EXPECT_EQ(second->ready(), 32u);
  EXPECT_EQ(second->table(0).ids(), (std::vector<uint32_t>{first->table(0).ids()[0], first->table(0).ids()[1]}));
  world_.AppendAll(*second);
  EXPECT_TRUE(world_.HoldsItsTokens(*second));
  EXPECT_EQ(world_.Lookup(second->keys())[0], 3u);
  // The same block computed by both: the second to seal it takes the held copy.
  ASSERT_TRUE(first->Extend(TokensFrom(40, 8)).ok());
  world_.AppendAll(*first);
  EXPECT_EQ(first->table(0).ids(), second->table(0).ids());
  EXPECT_TRUE(world_.HoldsItsTokens(*first));
  first.reset();
  second.reset();
  world_.ExpectBalanced();
}

TEST_F(SequenceTest, AForkSharesSealedBlocksAndCopiesTheTail) {
  std::unique_ptr<Sequence> parent = world_.NewSequence(TokensFrom(0, 40));
  world_.AppendAll(*parent);
  absl::StatusOr<std::unique_ptr<Sequence>> fork = parent->Fork(kNoDeadline);
  ASSERT_TRUE(fork.ok());
  const std::vector<uint32_t> ours = parent->table(0).ids(), theirs = (*fork)->table(0).ids();
  EXPECT_EQ(std::vector(ours.begin(), ours.begin() + 2), std::vector(theirs.begin(), theirs.begin() + 2));
  EXPECT_NE(ours[2], theirs[2]);
  EXPECT_EQ((*fork)->ready(), 40u);

  ASSERT_TRUE(parent->Extend(TokensFrom(100, 8)).ok());
  ASSERT_TRUE((*fork)->Extend(TokensFrom(200, 8)).ok());
  world_.AppendAll(*parent);
  world_.AppendAll(**fork);
  EXPECT_TRUE(world_.HoldsItsTokens(*parent));
  EXPECT_TRUE(world_.HoldsItsTokens(**fork));
  EXPECT_NE(parent->keys()[2], (*fork)->keys()[2]);
  EXPECT_EQ(world_.Lookup(parent->keys())[0], 3u);
  EXPECT_EQ(world_.Lookup((*fork)->keys())[0], 3u);

  parent.reset();
  EXPECT_TRUE(world_.HoldsItsTokens(**fork));
  fork->reset();
  world_.ExpectBalanced();
}

TEST_F(SequenceTest, TruncationInsideASealedBlockCopiesItAndLeavesItToOthers) {
  std::unique_ptr<Sequence> sequence = world_.NewSequence(TokensFrom(0, 48));
  world_.AppendAll(*sequence);
  const std::vector<BlockKey> keys(sequence->keys().begin(), sequence->keys().end());
  const std::vector<uint32_t> table = sequence->table(0).ids();
  ASSERT_TRUE(sequence->Truncate(20, kNoDeadline).ok());
  EXPECT_EQ(sequence->ready(), 20u);
  EXPECT_EQ(sequence->keys().size(), 1u);
  ASSERT_EQ(sequence->table(0).ids().size(), 2u);
  EXPECT_EQ(sequence->table(0).ids()[0], table[0]);
  EXPECT_NE(sequence->table(0).ids()[1], table[1]);
  EXPECT_EQ(world_.Lookup(keys)[0], 3u);

  ASSERT_TRUE(sequence->Extend(TokensFrom(500, 12)).ok());
  world_.AppendAll(*sequence);
  EXPECT_TRUE(world_.HoldsItsTokens(*sequence));
  EXPECT_NE(sequence->keys()[1], keys[1]);
  EXPECT_EQ(world_.Lookup(sequence->keys())[0], 2u);
  std::unique_ptr<Sequence> other = world_.Resumed(TokensFrom(0, 48));
  EXPECT_EQ(other->ready(), 48u);
  EXPECT_TRUE(world_.HoldsItsTokens(*other));
}

TEST_F(SequenceTest, TruncationAtABlockEndAndInTheTailCopiesNothing) {
  std::unique_ptr<Sequence> sequence = world_.NewSequence(TokensFrom(0, 40));
  world_.AppendAll(*sequence);
  const std::vector<uint32_t> table = sequence->table(0).ids();
  ASSERT_TRUE(sequence->Truncate(35, kNoDeadline).ok());
  EXPECT_EQ(sequence->table(0).ids(), table);
  EXPECT_EQ(sequence->ready(), 35u);
  ASSERT_TRUE(sequence->Truncate(32, kNoDeadline).ok());
  EXPECT_EQ(sequence->table(0).ids(), std::vector(table.begin(), table.begin() + 2));
  EXPECT_EQ(private_blocks(), 0u);
  EXPECT_THAT(sequence->Truncate(33, kNoDeadline).ToString(), HasSubstr("tokens: 33 to keep, the sequence has 32"));
  ASSERT_TRUE(sequence->Truncate(0, kNoDeadline).ok());
  EXPECT_TRUE(sequence->table(0).ids().empty());
  EXPECT_EQ(sequence->ready(), 0u);
  world_.ExpectBalanced();
}

TEST_F(SequenceTest, TruncationWithoutRoomForTheCopyChangesNothing) {
  SequenceWorld world({.device_slots = 2, .max_pinned_fraction = 1.0});
  std::unique_ptr<Sequence> sequence = world.NewSequence(TokensFrom(0, 32));
  world.AppendAll(*sequence);
  const std::vector<uint32_t> table = sequence->table(0).ids();
  EXPECT_TRUE(absl::IsResourceExhausted(sequence->Truncate(20, kNoDeadline)));
  EXPECT_EQ(sequence->table(0).ids(), table);
  EXPECT_EQ(sequence->tokens().size(), 32u);
  EXPECT_EQ(sequence->ready(), 32u);
  EXPECT_TRUE(world.HoldsItsTokens(*sequence));
}

TEST_F(SequenceTest, SlotsWithoutRoomForAllOfThemLeaveTheRoomToOthers) {
  SequenceWorld world({.device_slots = 4, .max_pinned_fraction = 1.0});
  std::unique_ptr<Sequence> sequence = world.NewSequence(TokensFrom(0, 80));
  world.Append(*sequence, 0, 20);
  const std::vector<uint32_t> table = sequence->table(0).ids();
  EXPECT_TRUE(absl::IsResourceExhausted(sequence->PrepareSlots(20, 60, kNoDeadline).status()));
  EXPECT_EQ(sequence->table(0).ids(), table);
  EXPECT_EQ(world.store->GetBooks().private_blocks, 1u);
  EXPECT_EQ(sequence->ready(), 20u);
  std::unique_ptr<Sequence> other = world.NewSequence(TokensFrom(500, 32));
  world.AppendAll(*other);
  other.reset();
  world.Append(*sequence, 20, 44);
  EXPECT_TRUE(world.HoldsItsTokens(*sequence));
  sequence.reset();
  world.ExpectBalanced();
}

TEST_F(SequenceTest, AForkWithoutRoomForTheTailIsRefusedAndLeavesNothing) {
  SequenceWorld world({.device_slots = 3, .max_pinned_fraction = 1.0});
  std::unique_ptr<Sequence> sequence = world.NewSequence(TokensFrom(0, 40));
  world.AppendAll(*sequence);
  EXPECT_TRUE(absl::IsResourceExhausted(sequence->Fork(kNoDeadline).status()));
  EXPECT_EQ(world.store->GetBooks().private_blocks, 1u);
  sequence.reset();
  world.ExpectBalanced();
}

TEST_F(SequenceTest, GoesOnPrivatelyWhenItsPrefixIsErasedUnderIt) {
  std::unique_ptr<Sequence> sequence = world_.NewSequence(TokensFrom(0, 40));
  world_.AppendAll(*sequence);
  EXPECT_EQ(world_.store->EraseIdentity(world_.root), 2u);
  ASSERT_TRUE(sequence->Extend(TokensFrom(40, 24)).ok());
  world_.AppendAll(*sequence);
  EXPECT_EQ(sequence->ready(), 64u);
  EXPECT_TRUE(world_.HoldsItsTokens(*sequence));
  EXPECT_EQ(world_.Lookup(sequence->keys())[0], 0u);
  absl::StatusOr<std::unique_ptr<Sequence>> fork = sequence->Fork(kNoDeadline);
  ASSERT_TRUE(fork.ok());
  EXPECT_TRUE(world_.HoldsItsTokens(**fork));
  ASSERT_TRUE((*fork)->Extend(TokensFrom(64, 32)).ok());
  world_.AppendAll(**fork);
  EXPECT_EQ(world_.Lookup((*fork)->keys())[0], 0u) << "nor does its fork publish";
  sequence.reset();
  fork->reset();
  world_.ExpectBalanced();
  EXPECT_EQ(world_.device->used(), 0u);
}

TEST_F(SequenceTest, WithoutPublishingNothingIsFindable) {
  std::unique_ptr<Sequence> sequence = world_.NewSequence(TokensFrom(0, 40), /*publish=*/false);
  world_.AppendAll(*sequence);
  EXPECT_EQ(sequence->ready(), 40u);
  EXPECT_TRUE(world_.HoldsItsTokens(*sequence));
  EXPECT_EQ(world_.Lookup(sequence->keys())[0], 0u);
  EXPECT_EQ(private_blocks(), 3u);
  ASSERT_TRUE(sequence->Truncate(20, kNoDeadline).ok());
  EXPECT_EQ(private_blocks(), 2u);
}

TEST_F(SequenceTest, SealedBlocksInheritTheLossyHistoryOfThePrefix) {
  std::unique_ptr<Sequence> sequence = world_.NewSequence(TokensFrom(0, 32));
  LossyFormats lossy;
  lossy.Add(KvFormat::kF16);
  ResumeResult resumed;
  resumed.held.emplace_back();
  resumed.held[0].push_back({0, std::move(world_.SealChain(world_.root, sequence->keys().first(1), lossy)[0])});
  resumed.found_in.push_back(HitSource::kDevice);
  sequence->Adopt(std::move(resumed));
  world_.AppendAll(*sequence);
  EXPECT_EQ(world_.Lookup(sequence->keys())[0], 0u);
  EXPECT_EQ(world_.Lookup(sequence->keys(), lossy)[0], 2u);
}

TEST_F(SequenceTest, AClaimEndsBlockByBlockAndWithTheSequence) {
  SingleFlight flight(world_.clock);
  std::unique_ptr<Sequence> sequence = world_.NewSequence(TokensFrom(0, 64));
  const std::vector<BlockKey> keys(sequence->keys().begin(), sequence->keys().end());
  ResumeResult resumed{.held = std::vector<std::vector<HeldBlock>>(1), .found_in = {}, .to_compute = {}};
  resumed.to_compute = flight.ClaimLeading(keys);
  sequence->Adopt(std::move(resumed));
  world_.Append(*sequence, 0, 20);
  EXPECT_TRUE(flight.Wait(keys[0], absl::InfinitePast()));
  EXPECT_FALSE(flight.Wait(keys[1], absl::InfinitePast()));
  ASSERT_TRUE(sequence->Truncate(18, kNoDeadline).ok());
  EXPECT_EQ(flight.claimed(), 0u);

  ResumeResult more{.held = std::vector<std::vector<HeldBlock>>(1), .found_in = {}, .to_compute = {}};
  more.to_compute = flight.ClaimLeading(keys);
  std::unique_ptr<Sequence> fresh = world_.NewSequence(TokensFrom(0, 64));
  fresh->Adopt(std::move(more));
  EXPECT_EQ(flight.claimed(), 4u);
  fresh.reset();
  EXPECT_EQ(flight.claimed(), 0u);
}

TEST_F(SequenceTest, TokensAndBlocksAreBounded) {
  std::unique_ptr<Sequence> sequence = world_.NewSequence(TokensFrom(0, kMaxPromptTokens - 1));
  EXPECT_TRUE(sequence->Extend(TokensFrom(0, 1)).ok());
  EXPECT_THAT(sequence->Extend(TokensFrom(0, 1)).ToString(), HasSubstr("tokens: 1048577, the limit is 1048576"));
  EXPECT_EQ(sequence->tokens().size(), kMaxPromptTokens);

  EXPECT_TRUE(absl::IsResourceExhausted(sequence->PrepareSlots(0, 33 * kTestBlockTokens, kNoDeadline).status()));
  EXPECT_EQ(sequence->ready(), 0u);
  EXPECT_TRUE(sequence->PrepareSlots(0, 32 * kTestBlockTokens, kNoDeadline).ok());
}

}  // namespace
}  // namespace kvmesh
