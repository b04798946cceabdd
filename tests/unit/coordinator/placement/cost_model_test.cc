#include "coordinator/placement/cost_model.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace kvmesh {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr uint64_t kBlockBytes = 1'000'000;

// 1000 tokens a second: a block takes 16 ms to compute. 1 GB/s: 1 ms to pull.
Candidate Worker(uint32_t slot, uint32_t device, uint32_t memory, uint32_t disk) {
  return {.slot = WorkerSlot(slot),
          .rates = {.prefill_tokens_per_second = 1000,
                    .host_bytes_per_second = 10e9,
                    .disk_bytes_per_second = 0.5e9,
                    .peer_bytes_per_second = 1e9},
          .block_tokens = kBlockTokens,
          .block_bytes = kBlockBytes,
          .blocks = {device, memory, disk}};
}

class CostModelTest : public testing::Test {
 protected:
  CandidateCost Cost(size_t index, uint32_t blocks, uint64_t prompt = 0, uint32_t expected = 0) {
    std::vector<size_t> sources(candidates_.size());
    for (size_t i = 0; i < sources.size(); ++i) sources[i] = i;
    return CostOf(options_, candidates_, sources, index, blocks, prompt, expected, spans_);
  }

  PlacementOptions options_;
  std::vector<Candidate> candidates_;
  std::vector<PullSpan> spans_;
};

TEST_F(CostModelTest, ColdWorkerComputesEverything) {
  candidates_ = {Worker(0, 0, 0, 0)};
  const CandidateCost cost = Cost(0, 10, 165);
  EXPECT_EQ(cost.compute_tokens, 165u);
  EXPECT_NEAR(cost.compute_seconds, 0.165, 1e-9);
  EXPECT_EQ(cost.load_seconds, 0);
  EXPECT_NEAR(cost.total_seconds, 0.165, 1e-9);
  EXPECT_TRUE(spans_.empty());
}

TEST_F(CostModelTest, PromptLengthDefaultsToFullBlocks) {
  candidates_ = {Worker(0, 0, 0, 0)};
  EXPECT_EQ(Cost(0, 10).compute_tokens, 160u);
}

TEST_F(CostModelTest, LastTokenIsAlwaysComputed) {
  candidates_ = {Worker(0, 10, 10, 0)};
  const CandidateCost cost = Cost(0, 10);
  EXPECT_EQ(cost.local_tokens, 160u);
  EXPECT_EQ(cost.compute_tokens, 1u);
}

TEST_F(CostModelTest, OwnTiersCostTheirBandwidth) {
  candidates_ = {Worker(0, 2, 5, 9)};
  const CandidateCost cost = Cost(0, 10);
  EXPECT_EQ(cost.local_tokens, 9u * kBlockTokens);
  EXPECT_NEAR(cost.load_seconds, 3 * 1e6 / 10e9 + 4 * 1e6 / 0.5e9, 1e-9);
}

TEST_F(CostModelTest, PullsWhereThatBeatsComputing) {
  candidates_ = {Worker(0, 0, 0, 0), Worker(1, 8, 8, 0)};
  const CandidateCost cost = Cost(0, 10);
  ASSERT_EQ(spans_.size(), 1u);
  EXPECT_EQ(spans_[0].first_block, 0u);
  EXPECT_EQ(spans_[0].block_count, 8u);
  EXPECT_EQ(spans_[0].source, 1u);
  EXPECT_EQ(spans_[0].set, IndexSet::kDevice);
  EXPECT_EQ(cost.pull_tokens, 8u * kBlockTokens);
  EXPECT_EQ(cost.compute_tokens, 2u * kBlockTokens);
  EXPECT_NEAR(cost.load_seconds, 0.001 + 8 * 0.001, 1e-9);
}

TEST_F(CostModelTest, SlowLinkIsNoSource) {
  candidates_ = {Worker(0, 0, 0, 0), Worker(1, 8, 8, 0)};
  candidates_[1].rates.peer_bytes_per_second = 1e6;  // a second a block
  EXPECT_EQ(Cost(0, 10).pull_tokens, 0u);
  EXPECT_TRUE(spans_.empty());
  // The receiver's own link counts as much.
  candidates_[1].rates.peer_bytes_per_second = 1e9;
  candidates_[0].rates.peer_bytes_per_second = 1e6;
  EXPECT_EQ(Cost(0, 10).pull_tokens, 0u);
}

TEST_F(CostModelTest, SetUpOfAPullMustPayOffToo) {
  candidates_ = {Worker(0, 0, 0, 0), Worker(1, 1, 1, 0)};
  options_.pull_setup = absl::Milliseconds(14);
  EXPECT_EQ(Cost(0, 10).pull_tokens, 16u);
  options_.pull_setup = absl::Milliseconds(16);
  EXPECT_EQ(Cost(0, 10).pull_tokens, 0u);
}

TEST_F(CostModelTest, FastestSourceFirstThenDeeperOnes) {
  candidates_ = {Worker(0, 1, 1, 0), Worker(1, 0, 4, 0), Worker(2, 0, 0, 9)};
  Cost(0, 10);
  ASSERT_EQ(spans_.size(), 2u);
  EXPECT_EQ(spans_[0].first_block, 1u);
  EXPECT_EQ(spans_[0].block_count, 3u);
  EXPECT_EQ(spans_[0].source, 1u);
  EXPECT_EQ(spans_[0].set, IndexSet::kMemory);
  EXPECT_EQ(spans_[1].first_block, 4u);
  EXPECT_EQ(spans_[1].block_count, 5u);
  EXPECT_EQ(spans_[1].source, 2u);
  EXPECT_EQ(spans_[1].set, IndexSet::kDisk);
}

TEST_F(CostModelTest, LastSpanThatDoesNotPayOffIsCut) {
  candidates_ = {Worker(0, 0, 0, 0), Worker(1, 4, 4, 0), Worker(2, 0, 0, 9)};
  candidates_[2].rates.disk_bytes_per_second = 1e6;
  const CandidateCost cost = Cost(0, 10);
  ASSERT_EQ(spans_.size(), 1u);
  EXPECT_EQ(cost.pull_tokens, 4u * kBlockTokens);
  EXPECT_NEAR(cost.load_seconds, 0.001 + 4 * 0.001, 1e-9);
}

TEST_F(CostModelTest, LessLoadedOfEqualPeersServes) {
  candidates_ = {Worker(0, 0, 0, 0), Worker(1, 4, 4, 0), Worker(2, 4, 4, 0)};
  candidates_[1].queue_seconds = 1;
  Cost(0, 10);
  ASSERT_EQ(spans_.size(), 1u);
  EXPECT_EQ(spans_[0].source, 2u);
}

TEST_F(CostModelTest, AnotherLayoutIsNoSource) {
  candidates_ = {Worker(0, 0, 0, 0), Worker(1, 8, 8, 0)};
  candidates_[1].layout = 7;
  EXPECT_EQ(Cost(0, 10).pull_tokens, 0u);
  candidates_[1].layout = 0;
  candidates_[1].block_bytes *= 2;
  EXPECT_EQ(Cost(0, 10).pull_tokens, 0u);
}

TEST_F(CostModelTest, ExpectedBlocksLowerCostAndScoreButAreNoHit) {
  candidates_ = {Worker(0, 0, 0, 0), Worker(1, 0, 0, 0)};
  candidates_[0].expected_blocks = 8;
  candidates_[0].queue_seconds = 0.128;
  const CandidateCost follower = Cost(0, 10, 0, 8);
  EXPECT_EQ(follower.hit_tokens(), 0u);
  EXPECT_EQ(follower.compute_tokens, 160u);
  EXPECT_NEAR(follower.compute_seconds, 0.032, 1e-9);
  EXPECT_NEAR(follower.score, 0.16, 1e-9);
  const CandidateCost stranger = Cost(1, 10, 0, 8);
  EXPECT_NEAR(stranger.total_seconds, 0.16, 1e-9);
  EXPECT_NEAR(stranger.score, 0.16 + 0.128, 1e-9);  // the cluster would compute 8 blocks twice
}

TEST_F(CostModelTest, TiesGoToTheFollowerThenTheLeastLoadedThenByTurns) {
  candidates_ = {Worker(0, 0, 0, 0), Worker(1, 0, 0, 0), Worker(2, 0, 0, 0)};
  std::vector<CandidateCost> costs;
  for (size_t i = 0; i < candidates_.size(); ++i) costs.push_back(Cost(i, 10));
  EXPECT_EQ(ChooseCost(options_, candidates_, costs, 0), 0u);
  EXPECT_EQ(ChooseCost(options_, candidates_, costs, 1), 1u);
  EXPECT_EQ(ChooseCost(options_, candidates_, costs, 2), 2u);
  EXPECT_EQ(ChooseCost(options_, candidates_, costs, 3), 0u);
  candidates_[0].recent_seconds = 1;
  candidates_[2].recent_seconds = 2;
  for (uint64_t turn = 0; turn < 3; ++turn) EXPECT_EQ(ChooseCost(options_, candidates_, costs, turn), 1u);
  candidates_[2].expected_blocks = 3;
  for (uint64_t turn = 0; turn < 3; ++turn) EXPECT_EQ(ChooseCost(options_, candidates_, costs, turn), 2u);
}

TEST_F(CostModelTest, ClearlyCheaperWinsWhateverTheLoad) {
  candidates_ = {Worker(0, 9, 9, 0), Worker(1, 0, 0, 0)};
  candidates_[0].recent_seconds = 1000;
  candidates_[1].rates.peer_bytes_per_second = 1e6;
  const std::vector<CandidateCost> costs = {Cost(0, 10), Cost(1, 10)};
  EXPECT_EQ(ChooseCost(options_, candidates_, costs, 0), 0u);
}

TEST_F(CostModelTest, NonsenseRatesBecomeDefaults) {
  const PlacementRates rates = WithDefaults({.prefill_tokens_per_second = -1,
                                             .host_bytes_per_second = std::numeric_limits<double>::quiet_NaN(),
                                             .disk_bytes_per_second = std::numeric_limits<double>::infinity(),
                                             .peer_bytes_per_second = 5},
                                            options_.default_rates);
  EXPECT_EQ(rates.prefill_tokens_per_second, options_.default_rates.prefill_tokens_per_second);
  EXPECT_EQ(rates.host_bytes_per_second, options_.default_rates.host_bytes_per_second);
  EXPECT_EQ(rates.disk_bytes_per_second, options_.default_rates.disk_bytes_per_second);
  EXPECT_EQ(rates.peer_bytes_per_second, 5);
}

TEST_F(CostModelTest, OptionsAreValidated) {
  EXPECT_TRUE(options_.Validate().ok());
  EXPECT_FALSE((PlacementOptions{.default_rates = {}}).Validate().ok());
  EXPECT_FALSE((PlacementOptions{.tie_fraction = 2}).Validate().ok());
  EXPECT_FALSE((PlacementOptions{.recent_half_life = absl::ZeroDuration()}).Validate().ok());
  EXPECT_FALSE((PlacementOptions{.max_in_flight = 0}).Validate().ok());
  EXPECT_FALSE((PlacementOptions{.max_candidates = 0}).Validate().ok());
}

}  // namespace
}  // namespace kvmesh
