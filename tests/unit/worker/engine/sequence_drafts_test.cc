// Drafts: tokens that are written, and accepted or dropped later. Nobody ever finds one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "tests/unit/worker/engine/sequence_world.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

class SequenceDraftsTest : public testing::Test {
 protected:
  uint64_t private_blocks() { return world_.store->GetBooks().private_blocks; }

  SequenceWorld world_{{.device_slots = 32, .max_pinned_fraction = 1.0}};
};

TEST_F(SequenceDraftsTest, DraftsAreSealedOnceAccepted) {
  std::unique_ptr<Sequence> sequence = world_.NewSequence(TokensFrom(0, 30));
  EXPECT_EQ(sequence->accepted(), 30u);
  world_.AppendAll(*sequence);
  ASSERT_TRUE(sequence->ExtendWithDrafts(TokensFrom(30, 20)).ok());
  world_.AppendAll(*sequence);
  EXPECT_EQ(sequence->ready(), 50u);
  EXPECT_EQ(sequence->accepted(), 30u);
  EXPECT_EQ(sequence->keys().size(), 3u);
  EXPECT_EQ(world_.Lookup(sequence->keys())[0], 1u);
  EXPECT_EQ(world_.Resumed(TokensFrom(0, 50))->ready(), 16u);
  EXPECT_EQ(private_blocks(), 3u);
  EXPECT_TRUE(world_.HoldsItsTokens(*sequence));

  ASSERT_TRUE(sequence->Accept(40).ok());
  EXPECT_EQ(sequence->tokens(), TokensFrom(0, 40));
  EXPECT_EQ(sequence->accepted(), 40u);
  EXPECT_EQ(sequence->ready(), 40u);
  EXPECT_EQ(private_blocks(), 1u);
  EXPECT_EQ(world_.Lookup(sequence->keys())[0], 2u);
  EXPECT_TRUE(sequence->Accept(40).ok()) << "twice is once";
  ASSERT_TRUE(sequence->Extend(TokensFrom(40, 8)).ok());
  world_.AppendAll(*sequence);
  EXPECT_EQ(world_.Resumed(TokensFrom(0, 48))->ready(), 48u);
  EXPECT_TRUE(world_.HoldsItsTokens(*sequence));
  sequence.reset();
  world_.ExpectBalanced();
}

TEST_F(SequenceDraftsTest, DraftsAcceptedBeforeTheirLastLayerAreSealedWithIt) {
  std::unique_ptr<Sequence> sequence = world_.NewSequence(TokensFrom(0, 10));
  world_.AppendAll(*sequence);
  ASSERT_TRUE(sequence->ExtendWithDrafts(TokensFrom(10, 6)).ok());
  world_.Append(*sequence, 10, 6, 0, 1);
  ASSERT_TRUE(sequence->Accept(16).ok());
  EXPECT_EQ(world_.Lookup(sequence->keys())[0], 0u);
  world_.Append(*sequence, 10, 6, 1, 1);
  EXPECT_EQ(world_.Lookup(sequence->keys())[0], 1u);
}

TEST_F(SequenceDraftsTest, DroppedDraftsCopyNothingAndLeaveClaimsAlone) {
  SequenceWorld world({.device_slots = 3, .max_pinned_fraction = 1.0});
  SingleFlight flight(world.clock);
  std::unique_ptr<Sequence> sequence = world.NewSequence(TokensFrom(0, 32));
  ResumeResult resumed{.held = std::vector<std::vector<HeldBlock>>(1), .found_in = {}, .to_compute = {}};
  resumed.to_compute = flight.ClaimLeading(sequence->keys());
  sequence->Adopt(std::move(resumed));
  world.Append(*sequence, 0, 16);
  ASSERT_TRUE(sequence->ExtendWithDrafts(TokensFrom(90, 16)).ok());
  world.Append(*sequence, 16, 32);
  // The pool is full. Nothing of the second block is a draft, so that it is sealed.
  const std::vector<uint32_t> table = sequence->table(0).ids();
  EXPECT_EQ(world.Lookup(sequence->keys())[0], 2u);
  ASSERT_TRUE(sequence->Truncate(40, kNoDeadline).ok());
  EXPECT_EQ(sequence->accepted(), 32u) << "drafts that are kept stay drafts";
  EXPECT_EQ(sequence->table(0).ids(), table);
  ASSERT_TRUE(sequence->Accept(32).ok());
  EXPECT_EQ(sequence->table(0).ids(), std::vector(table.begin(), table.begin() + 2));
  EXPECT_EQ(world.store->GetBooks().private_blocks, 0u);

  std::unique_ptr<Sequence> fresh = world.NewSequence(TokensFrom(500, 32));
  ResumeResult more{.held = std::vector<std::vector<HeldBlock>>(1), .found_in = {}, .to_compute = {}};
  more.to_compute = flight.ClaimLeading(fresh->keys());
  fresh->Adopt(std::move(more));
  ASSERT_TRUE(fresh->ExtendWithDrafts(TokensFrom(600, 4)).ok());
  ASSERT_TRUE(fresh->Truncate(33, kNoDeadline).ok());
  EXPECT_EQ(flight.claimed(), 2u);
  ASSERT_TRUE(fresh->Truncate(31, kNoDeadline).ok());
  EXPECT_EQ(flight.claimed(), 0u);
  EXPECT_EQ(fresh->accepted(), 31u);
}

TEST_F(SequenceDraftsTest, AcceptanceNeitherGoesBackNorBeyondTheTokens) {
  std::unique_ptr<Sequence> sequence = world_.NewSequence(TokensFrom(0, 20));
  ASSERT_TRUE(sequence->ExtendWithDrafts(TokensFrom(20, 4)).ok());
  ASSERT_TRUE(sequence->ExtendWithDrafts(TokensFrom(24, 4)).ok());
  EXPECT_THAT(sequence->Extend(TokensFrom(28, 1)).ToString(), HasSubstr("tokens: behind 8 drafts"));
  EXPECT_THAT(sequence->Accept(19).ToString(), HasSubstr("tokens: 19 to accept, must be 20"));
  EXPECT_THAT(sequence->Accept(29).ToString(), HasSubstr("to 28 (known)"));
  EXPECT_TRUE(absl::IsInvalidArgument(sequence->Accept(~uint64_t{0})));
  EXPECT_EQ(sequence->tokens(), TokensFrom(0, 28));
  EXPECT_EQ(sequence->accepted(), 20u);
  ASSERT_TRUE(sequence->Accept(26).ok());
  EXPECT_TRUE(sequence->Extend(TokensFrom(26, 1)).ok());
  EXPECT_EQ(sequence->accepted(), 27u);
}

TEST_F(SequenceDraftsTest, AForksDraftsAreItsOwn) {
  std::unique_ptr<Sequence> parent = world_.NewSequence(TokensFrom(0, 20));
  ASSERT_TRUE(parent->ExtendWithDrafts(TokensFrom(20, 16)).ok());
  world_.AppendAll(*parent);
  absl::StatusOr<std::unique_ptr<Sequence>> fork = parent->Fork(kNoDeadline);
  ASSERT_TRUE(fork.ok());
  EXPECT_EQ((*fork)->accepted(), 20u);
  ASSERT_TRUE(parent->Accept(20).ok());
  EXPECT_EQ(world_.Resumed(TokensFrom(0, 36))->ready(), 16u);
  ASSERT_TRUE((*fork)->Accept(36).ok());
  EXPECT_EQ(world_.Resumed(TokensFrom(0, 36))->ready(), 32u);
  EXPECT_TRUE(world_.HoldsItsTokens(**fork));
}

TEST_F(SequenceDraftsTest, DraftsAreNotFoundAfterARestart) {
  SequenceWorld world({.device_slots = 16, .disk_blocks = 64, .max_pinned_fraction = 1.0});
  std::unique_ptr<Sequence> sequence = world.NewSequence(TokensFrom(0, 32));
  ASSERT_TRUE(sequence->ExtendWithDrafts(TokensFrom(32, 32)).ok());
  world.AppendAll(*sequence);
  const std::vector<BlockKey> drafted(sequence->keys().begin(), sequence->keys().end());
  ASSERT_TRUE(sequence->Accept(48).ok());
  ASSERT_TRUE(sequence->Extend(TokensFrom(900, 16)).ok());
  world.AppendAll(*sequence);
  const std::vector<BlockKey> accepted(sequence->keys().begin(), sequence->keys().end());
  world.Churn(TestRoot(8), 40);
  sequence.reset();
  world.Churn(TestRoot(8), 40);
  world.Restart();
  EXPECT_EQ(world.Acquire(drafted).pins.size(), 3u);
  EXPECT_EQ(world.Acquire(accepted).pins.size(), 4u);
}

// The literal rule: a chain is found as far as some sequence had all its positions written, in all layers, and
// accepted.
TEST_F(SequenceDraftsTest, RandomDraftingNeverShowsADraftAndNeverHidesAnAcceptedBlock) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SequenceWorld world({.device_slots = 512, .max_pinned_fraction = 1.0});
    std::mt19937_64 random(seed);
    std::vector<std::unique_ptr<Sequence>> sequences;
    sequences.push_back(world.NewSequence(TokensFrom(0, 1 + random() % 40)));
    std::set<BlockKey> findable;
    std::vector<std::vector<BlockKey>> seen;
    uint32_t next_token = 1000;
    for (int step = 0; step < 120; ++step) {
      Sequence& sequence = *sequences[random() % sequences.size()];
      const uint64_t size = sequence.tokens().size();
      const uint64_t count = 1 + random() % 12;
      switch (random() % 8) {
        case 0:
        case 1:
          EXPECT_EQ(sequence.Extend(TokensFrom(next_token, count)).ok(), sequence.accepted() == size);
          break;
        case 2:
        case 3:
          ASSERT_TRUE(sequence.ExtendWithDrafts(TokensFrom(next_token, count)).ok());
          break;
        case 4:
          ASSERT_TRUE(sequence.Accept(sequence.accepted() + random() % (size - sequence.accepted() + 1)).ok());
          break;
        case 5:
          if (random() % 4 == 0) {
            ASSERT_TRUE(sequence.Truncate(random() % (size + 1), kNoDeadline).ok());
          }
          break;
        case 6:
          if (sequences.size() < 4) sequences.push_back(*sequence.Fork(kNoDeadline));
          break;
        default: {
          const int32_t layer = static_cast<int32_t>(random() % 2);
          const uint64_t written = sequence.written(layer);
          world.Append(sequence, written, random() % (size - written + 1), layer, 1);
        }
      }
      next_token += 16;
      for (const auto& each : sequences) {
        const uint64_t blocks = std::min(each->ready(), each->accepted()) / kTestBlockTokens;
        for (uint64_t i = 0; i < blocks; ++i) findable.insert(each->keys()[i]);
        seen.emplace_back(each->keys().begin(), each->keys().end());
        ASSERT_TRUE(world.HoldsItsTokens(*each)) << "step " << step;
      }
      const auto& chain = seen[random() % seen.size()];
      const auto end =
          std::find_if(chain.begin(), chain.end(), [&](const BlockKey& key) { return findable.count(key) == 0; });
      ASSERT_EQ(world.Lookup(chain)[0], static_cast<uint32_t>(end - chain.begin())) << "step " << step;
    }
    for (const auto& chain : seen) {
      for (uint32_t i = world.Lookup(chain)[0]; i < chain.size(); ++i) ASSERT_EQ(findable.count(chain[i]), 0u);
    }
    sequences.clear();
    world.ExpectBalanced();
  }
}

}  // namespace
}  // namespace kvmesh
