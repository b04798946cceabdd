// Placements in flight: load, hints, life.
#include "coordinator/placement/placer.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

#include "tests/support/block_content.h"

namespace kvmesh {
namespace {

constexpr uint32_t kBlockTokens = 16;

class PlacerTest : public testing::Test {
 protected:
  // `count` cold workers, 1000 tokens a second.
  static std::vector<Candidate> Workers(size_t count) {
    std::vector<Candidate> out;
    for (uint32_t i = 0; i < count; ++i) {
      out.push_back({.slot = WorkerSlot(i),
                     .rates = {.prefill_tokens_per_second = 1000,
                               .host_bytes_per_second = 10e9,
                               .disk_bytes_per_second = 1e9,
                               .peer_bytes_per_second = 1e9},
                     .block_tokens = kBlockTokens,
                     .block_bytes = 1'000'000});
    }
    return out;
  }
  Placement Place(std::vector<Candidate>& candidates, std::span<const BlockKey> keys, uint64_t prompt = 0) {
    Placement out;
    EXPECT_TRUE(placer_.Place({.keys = keys, .prompt_tokens = prompt}, candidates, out).ok());
    return out;
  }
  double Queue(uint32_t slot) {
    std::vector<Candidate> candidates = Workers(slot + 1);
    for (uint32_t i = 0; i < slot; ++i) candidates[i].eligible = false;
    const Placement probe = Place(candidates, {}, 1);
    EXPECT_TRUE(placer_.Complete(probe.id).ok());
    return candidates[slot].queue_seconds;
  }
  void Advance(absl::Duration by) { clock_.AdvanceTo(clock_.Now() + by); }

  const std::vector<BlockKey> chain_ = TestChain(TestRoot(1), 0, 10);
  ManualClock clock_{absl::FromUnixSeconds(1000)};
  PlacementOptions options_{.max_in_flight = 4};
  Placer placer_{options_, clock_, RandomSource::Real()};
};

TEST_F(PlacerTest, NoEligibleWorkerIsUnavailable) {
  std::vector<Candidate> candidates = Workers(2);
  for (Candidate& candidate : candidates) candidate.eligible = false;
  Placement out;
  EXPECT_EQ(placer_.Place({.keys = chain_}, candidates, out).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(placer_.Place({.keys = chain_}, {}, out).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(placer_.Stats().in_flight, 0u);
}

TEST_F(PlacerTest, ChosenStandsFirstAmongTheReasons) {
  std::vector<Candidate> candidates = Workers(3);
  candidates[1].blocks = {10, 10, 0};
  candidates[0].queue_seconds = 5;
  const Placement placement = Place(candidates, chain_);
  EXPECT_EQ(placement.chosen, 1u);
  ASSERT_EQ(placement.costs.size(), 3u);
  EXPECT_EQ(placement.costs[0].candidate, 1u);
  EXPECT_EQ(placement.costs[2].candidate, 0u);
}

TEST_F(PlacerTest, IneligibleWorkerStillServesAsASource) {
  std::vector<Candidate> candidates = Workers(2);
  candidates[0].blocks = {10, 10, 0};
  candidates[0].eligible = false;
  const Placement placement = Place(candidates, chain_);
  EXPECT_EQ(placement.chosen, 1u);
  ASSERT_EQ(placement.sources.size(), 1u);
  EXPECT_EQ(placement.sources[0].source, 0u);
  EXPECT_EQ(placement.costs.size(), 1u);
}

TEST_F(PlacerTest, PlacementsInFlightAreLoadThatDrainsWithTime) {
  std::vector<Candidate> candidates = Workers(1);
  const Placement first = Place(candidates, chain_, 2000);
  EXPECT_NEAR(Queue(0), 2.0, 1e-6);
  Advance(absl::Milliseconds(500));
  EXPECT_NEAR(Queue(0), 1.5, 1e-6);
  Advance(absl::Seconds(10));
  EXPECT_EQ(Queue(0), 0);
  EXPECT_EQ(placer_.Stats().in_flight, 1u);
  EXPECT_EQ(placer_.Complete(first.id)->predicted_hit_tokens, 0u);
}

TEST_F(PlacerTest, LongerOfReportedAndPredictedQueueCounts) {
  std::vector<Candidate> candidates = Workers(1);
  Place(candidates, chain_, 2000);
  candidates = Workers(1);
  candidates[0].queue_seconds = 7;
  Place(candidates, {}, 1);
  EXPECT_EQ(candidates[0].queue_seconds, 7);
}

TEST_F(PlacerTest, CompletionTakesItsLoadAway) {
  std::vector<Candidate> candidates = Workers(1);
  const Placement first = Place(candidates, TestChain(TestRoot(1), 1, 1), 1000);
  const Placement second = Place(candidates, TestChain(TestRoot(1), 2, 1), 3000);
  EXPECT_NEAR(Queue(0), 4.0, 1e-6);
  Advance(absl::Milliseconds(400));
  ASSERT_TRUE(placer_.Complete(first.id).ok());  // early: 0.6 s are left over
  EXPECT_NEAR(Queue(0), 3.0, 1e-6);
  ASSERT_TRUE(placer_.Complete(second.id).ok());
  EXPECT_EQ(Queue(0), 0);
  EXPECT_EQ(placer_.Complete(first.id).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(PlacerTest, PlacementExpiresAfterItsPredictedEndAndTheGrace) {
  std::vector<Candidate> candidates = Workers(1);
  const Placement placement = Place(candidates, chain_, 2000);
  Advance(absl::Seconds(31));
  EXPECT_EQ(placer_.Stats().in_flight, 1u);
  Advance(absl::Seconds(2));
  EXPECT_EQ(placer_.Stats().in_flight, 0u);
  EXPECT_EQ(placer_.Stats().expired, 1u);
  EXPECT_EQ(placer_.Complete(placement.id).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(PlacerTest, TableIsBounded) {
  std::vector<Candidate> candidates = Workers(1);
  std::vector<PlacementId> ids;
  for (int i = 0; i < 6; ++i) {
    ids.push_back(Place(candidates, {}, 1).id);
    Advance(absl::Milliseconds(1));
  }
  EXPECT_EQ(placer_.Stats().in_flight, 4u);
  EXPECT_EQ(placer_.Stats().dropped, 2u);
  EXPECT_FALSE(placer_.Complete(ids[0]).ok());
  EXPECT_TRUE(placer_.Complete(ids[5]).ok());
  EXPECT_EQ(std::set<PlacementId>(ids.begin(), ids.end()).size(), 6u);
}

TEST_F(PlacerTest, ColdWorkersGetTheirShare) {
  std::array<int, 4> served{};
  for (uint32_t i = 0; i < 40; ++i) {
    std::vector<Candidate> candidates = Workers(4);
    const std::vector<BlockKey> chain = TestChain(TestRoot(1), i, 10);
    const Placement placement = Place(candidates, chain);
    ++served[placement.chosen];
    ASSERT_TRUE(placer_.Complete(placement.id).ok());  // no load is left, the share still is fair
  }
  for (const int count : served) EXPECT_EQ(count, 10);
}

TEST_F(PlacerTest, SiblingsOfABurstFollowTheFirst) {
  std::vector<Candidate> candidates = Workers(4);
  const Placement first = Place(candidates, chain_);
  for (int i = 0; i < 2; ++i) {
    candidates = Workers(4);
    const Placement sibling = Place(candidates, chain_);
    EXPECT_EQ(sibling.chosen, first.chosen);
    EXPECT_EQ(sibling.costs[0].hit_tokens(), 0u);  // a hint, never a hit
  }
}

TEST_F(PlacerTest, SiblingsThatShareAPrefixFollowWhileThatIsCheaper) {
  std::vector<BlockKey> sibling(chain_.begin(), chain_.begin() + 8);
  sibling.push_back(TestChild(sibling.back(), 9));
  std::vector<Candidate> candidates = Workers(4);
  const Placement first = Place(candidates, chain_);
  candidates = Workers(4);
  EXPECT_EQ(Place(candidates, sibling).chosen, first.chosen);
  // With a long queue there another worker is better.
  candidates = Workers(4);
  candidates[first.chosen].queue_seconds = 10;
  EXPECT_NE(Place(candidates, sibling).chosen, first.chosen);
}

TEST_F(PlacerTest, HintsEndWithTheirPlacement) {
  std::vector<Candidate> candidates = Workers(2);
  const Placement first = Place(candidates, chain_);
  ASSERT_TRUE(placer_.Complete(first.id).ok());
  candidates = Workers(2);
  EXPECT_NE(Place(candidates, chain_).chosen, first.chosen);  // nothing known: the less loaded one
}

TEST_F(PlacerTest, WorkerThatIsGoneLeavesNeitherLoadNorHints) {
  std::vector<Candidate> candidates = Workers(1);
  const Placement placement = Place(candidates, chain_, 5000);
  placer_.Forget(WorkerSlot(0));
  candidates = Workers(1);
  const Placement next = Place(candidates, chain_, 160);
  EXPECT_EQ(candidates[0].queue_seconds, 0);
  EXPECT_EQ(candidates[0].expected_blocks, 0u);
  // Its placements may still complete, without touching the load of the slot's next worker.
  ASSERT_TRUE(placer_.Complete(placement.id).ok());
  EXPECT_NEAR(Queue(0), 0.16, 1e-6);
  EXPECT_TRUE(placer_.Complete(next.id).ok());
}

TEST_F(PlacerTest, ManyCandidatesAreNarrowedToTheBestByMatchAndLoad) {
  std::vector<Candidate> candidates = Workers(300);
  for (Candidate& candidate : candidates) candidate.queue_seconds = 1;
  candidates[277].blocks = {10, 10, 0};
  candidates[288].queue_seconds = 0;
  const Placement placement = Place(candidates, chain_);
  EXPECT_EQ(placement.costs.size(), options_.max_candidates);
  // The idle one pulls for 11 ms; the holder has a second to wait.
  EXPECT_EQ(placement.chosen, 288u);
  ASSERT_EQ(placement.sources.size(), 1u);
  EXPECT_EQ(placement.sources[0].source, 277u);
}

}  // namespace
}  // namespace kvmesh
