#include "worker/engine/single_flight.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/await.h"
#include "tests/support/block_content.h"
#include "tests/support/gate.h"

namespace kvmesh {
namespace {

class SingleFlightTest : public testing::Test {
 protected:
  const std::vector<BlockKey> keys_ = TestChain(TestRoot(1), 1, 8);
  ManualClock clock_{absl::FromUnixSeconds(1'700'000'000)};
  SingleFlight flight_{clock_};
  bool Free(size_t i) const { return flight_.Wait(keys_[i], absl::InfinitePast()); }
};

TEST_F(SingleFlightTest, ClaimsTheLeadingKeysThatNobodyHolds) {
  SingleFlight::Claim tail = flight_.ClaimLeading(std::span(keys_).subspan(5));
  EXPECT_EQ(tail.size(), 3u);
  SingleFlight::Claim lead = flight_.ClaimLeading(keys_);
  EXPECT_EQ(lead.size(), 5u);
  EXPECT_EQ(flight_.claimed(), 8u);
  EXPECT_EQ(flight_.ClaimLeading(keys_).size(), 0u);
  EXPECT_EQ(flight_.ClaimLeading({}).size(), 0u);
}

TEST_F(SingleFlightTest, FinishLetsGoOfKeysUpToTheOneNamed) {
  SingleFlight::Claim claim = flight_.ClaimLeading(keys_);
  claim.FinishThrough(keys_[2]);
  EXPECT_EQ(claim.size(), 5u);
  EXPECT_TRUE(Free(0));
  EXPECT_TRUE(Free(2));
  EXPECT_FALSE(Free(3));
  claim.FinishThrough(keys_[0]);  // not held any more
  EXPECT_EQ(claim.size(), 5u);
  EXPECT_EQ(flight_.claimed(), 5u);
}

TEST_F(SingleFlightTest, AClaimLetsGoWhenItDiesIsResetOrReplaced) {
  { const SingleFlight::Claim claim = flight_.ClaimLeading(keys_); }
  EXPECT_EQ(flight_.claimed(), 0u);

  SingleFlight::Claim claim = flight_.ClaimLeading(std::span(keys_).first(4));
  SingleFlight::Claim moved = std::move(claim);
  EXPECT_EQ(claim.size(), 0u);
  EXPECT_EQ(moved.size(), 4u);
  claim.Reset();
  EXPECT_EQ(flight_.claimed(), 4u);

  moved = flight_.ClaimLeading(std::span(keys_).subspan(6));
  EXPECT_EQ(flight_.claimed(), 2u);
  EXPECT_FALSE(Free(7));
  moved.Reset();
  moved.Reset();
  EXPECT_EQ(flight_.claimed(), 0u);
}

TEST_F(SingleFlightTest, WaitReturnsAtOnceForAFreeKeyAndAtTheDeadlineForAHeldOne) {
  EXPECT_TRUE(flight_.Wait(keys_[0], absl::InfinitePast()));
  const SingleFlight::Claim claim = flight_.ClaimLeading(keys_);
  EXPECT_FALSE(flight_.Wait(keys_[0], clock_.Now()));
  EXPECT_FALSE(flight_.Wait(keys_[7], clock_.Now() - absl::Seconds(1)));
}

TEST_F(SingleFlightTest, WaitersGoOnWhenTheirKeyIsFinished) {
  SingleFlight::Claim claim = flight_.ClaimLeading(keys_);
  std::array<std::atomic<bool>, 8> done{};
  std::vector<std::thread> waiters;
  for (size_t i = 0; i < keys_.size(); ++i) {
    waiters.emplace_back([&, i] { done[i] = flight_.Wait(keys_[i], clock_.Now() + kTestPatience); });
  }
  claim.FinishThrough(keys_[3]);
  for (size_t i = 0; i < 4; ++i) waiters[i].join();
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(done[i], i < 4) << i;
  claim.Reset();
  for (size_t i = 4; i < 8; ++i) waiters[i].join();
  for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(done[i]) << i;
}

TEST_F(SingleFlightTest, AnIdleClaimIsTakenOver) {
  const absl::Duration idle = absl::Seconds(5);
  SingleFlight flight(clock_, idle);
  SingleFlight::Claim first = flight.ClaimLeading(keys_);
  clock_.AdvanceTo(clock_.Now() + idle - absl::Milliseconds(1));
  EXPECT_EQ(flight.ClaimLeading(keys_).size(), 0u);
  EXPECT_FALSE(flight.Wait(keys_[0], clock_.Now()));
  clock_.AdvanceTo(clock_.Now() + absl::Milliseconds(1));
  EXPECT_TRUE(flight.Wait(keys_[0], clock_.Now()));
  SingleFlight::Claim second = flight.ClaimLeading(std::span(keys_).first(6));
  EXPECT_EQ(second.size(), 6u);
  EXPECT_EQ(flight.claimed(), 8u);

  // The first can't let go of what is the second's now; that it goes on renews what is left to it.
  first.FinishThrough(keys_[3]);
  EXPECT_FALSE(flight.Wait(keys_[6], clock_.Now()));
  EXPECT_FALSE(flight.Wait(keys_[0], clock_.Now()));
  EXPECT_FALSE(flight.Wait(keys_[5], clock_.Now()));
  first.Reset();
  EXPECT_EQ(flight.claimed(), 6u);
  second.FinishThrough(keys_[4]);
  EXPECT_TRUE(flight.Wait(keys_[4], clock_.Now()));
  EXPECT_FALSE(flight.Wait(keys_[5], clock_.Now()));
  second.Reset();
  EXPECT_EQ(flight.claimed(), 0u);
}

TEST_F(SingleFlightTest, AClaimThatGoesOnIsKeptHoweverOldItIs) {
  SingleFlight flight(clock_, absl::Seconds(5));
  SingleFlight::Claim claim = flight.ClaimLeading(keys_);
  for (size_t i = 0; i + 1 < keys_.size(); ++i) {
    clock_.AdvanceTo(clock_.Now() + absl::Seconds(4));
    claim.FinishThrough(keys_[i]);
    EXPECT_EQ(flight.ClaimLeading(std::span(keys_).subspan(i + 1)).size(), 0u);
  }
}

TEST_F(SingleFlightTest, AWaitEndsWhenTheClaimBecomesIdle) {
  SingleFlight flight(clock_, absl::Milliseconds(20));
  const SingleFlight::Claim claim = flight.ClaimLeading(keys_);
  std::atomic<bool> over = false;
  std::thread waiter([&] {
    EXPECT_TRUE(flight.Wait(keys_[0], absl::InfiniteFuture()));
    over = true;
  });
  EXPECT_FALSE(over);
  clock_.AdvanceTo(clock_.Now() + absl::Milliseconds(20));
  waiter.join();
}

// Threads that want overlapping runs, each waiting with nothing in hand: no key has two holders and all come to an end.
TEST_F(SingleFlightTest, OverlappingClaimsNeverShareAKeyAndNeverCycle) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 500;
  std::array<std::atomic<int>, 8> holders{};
  std::atomic<uint64_t> held = 0;
  std::atomic<bool> shared = false;
  std::atomic<bool> stuck = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      for (int round = 0; round < kRounds; ++round) {
        const size_t first = random() % keys_.size();
        SingleFlight::Claim claim = flight_.ClaimLeading(std::span(keys_).subspan(first));
        if (claim.size() == 0) {
          if (!flight_.Wait(keys_[first], clock_.Now() + kTestPatience)) stuck = true;
          continue;
        }
        const size_t last = first + claim.size();
        for (size_t i = first; i < last; ++i) {
          if (++holders[i] != 1) shared = true;
        }
        held += last - first;
        for (size_t i = first; i < last; ++i) {
          --holders[i];
          claim.FinishThrough(keys_[i]);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(shared);
  EXPECT_FALSE(stuck);
  EXPECT_GT(held, 0u);
  EXPECT_EQ(flight_.claimed(), 0u);
}

TEST_F(SingleFlightTest, WaitersAreBounded) {
  constexpr size_t kMore = 3;
  SingleFlight::Claim claim = flight_.ClaimLeading(keys_);
  std::atomic<size_t> freed = 0, refused = 0;
  std::vector<std::thread> waiters;
  for (size_t i = 0; i < SingleFlight::kMaxWaiters + kMore; ++i) {
    waiters.emplace_back([&] { ++(flight_.Wait(keys_[0], absl::InfiniteFuture()) ? freed : refused); });
  }
  EXPECT_TRUE(Await(kTestPatience, [&] { return refused == kMore; }));
  EXPECT_EQ(freed, 0u);
  claim.Reset();
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(freed, SingleFlight::kMaxWaiters);
  EXPECT_EQ(refused, kMore);
  EXPECT_TRUE(flight_.Wait(keys_[0], absl::InfiniteFuture()));
}

}  // namespace
}  // namespace kvmesh
