#include "coordinator/route/router.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/prefix_index/literal_prefix_index.h"
#include "kvstore/block/ticket.h"
#include "tests/support/block_content.h"

namespace kvmesh {
namespace {

class RouterTest : public testing::Test {
 protected:
  std::shared_ptr<WorkerEntry> AddWorker(const std::string& id, bool warmed = true, uint32_t block_tokens = 16,
                                         BoundaryRule boundaries = BoundaryRule::kEvery) {
    WorkerDescription description;
    description.id = id;
    description.incarnation.bytes.fill(static_cast<uint8_t>(id[0]));
    description.address = id + ":1";
    description.protocol_version = 1;
    description.block_tokens = block_tokens;
    description.block_bytes = 1 << 20;
    description.boundaries = boundaries;
    const auto entry = *registry_.Register(description);
    if (warmed) entry->SetWarmed();
    return entry;
  }
  void Store(const WorkerEntry& worker, IndexSet set, size_t blocks, LossyFormats lossy = {}) {
    ASSERT_TRUE(index_
                    .Stored(worker.slot(), set,
                            {.root = root_,
                             .parent = RootAsParent(root_),
                             .keys = std::span(chain_).first(blocks),
                             .lossy_formats = lossy})
                    .ok());
  }
  RouteQuery Query(absl::string_view worker_id = "") {
    return {.prefix = {.root = root_, .keys = chain_}, .block_tokens = 16, .top_k = 4, .worker_id = worker_id};
  }

  const RootKey root_ = TestRoot(1);
  const std::vector<BlockKey> chain_ = TestChain(root_, 0, 10);
  const TicketKey ticket_key_ = DeriveTicketKey("secret");
  ManualClock clock_{absl::FromUnixSeconds(1000)};
  LiteralPrefixIndex index_{PrefixIndexOptions{}};
  Placer placer_{PlacementOptions{}, clock_, RandomSource::Real()};
  WorkerRegistry registry_{RegistryOptions{}, index_, clock_, nullptr};
  Router router_{RouterOptions{}, index_, registry_, placer_, clock_, RandomSource::Real(), ticket_key_};
  RouteAnswer answer_;
};

TEST_F(RouterTest, WithoutWorkersItIsUnavailable) {
  EXPECT_EQ(router_.Route(Query(), answer_).code(), absl::StatusCode::kUnavailable);
}

TEST_F(RouterTest, HolderIsChosenAndHoldersAreRanked) {
  AddWorker("a");
  const auto b = AddWorker("b");
  const auto c = AddWorker("c");
  Store(*b, IndexSet::kDevice, 10);
  Store(*c, IndexSet::kDisk, 4);
  ASSERT_TRUE(router_.Route(Query(), answer_).ok());
  EXPECT_EQ(answer_.chosen().description().id, "b");
  ASSERT_EQ(answer_.holders, 2u);
  EXPECT_EQ(answer_.matches[0].worker, b->slot());
  EXPECT_EQ(answer_.matches[0].in(IndexSet::kDevice), 10u);
  EXPECT_EQ(answer_.cost().hit_tokens(), 160u);
  EXPECT_EQ(answer_.placement.costs.size(), 3u);
  EXPECT_TRUE(answer_.sources.empty());
}

TEST_F(RouterTest, MatchesOfWorkersWithWindowsEndAtUsableBoundaries) {
  const auto a = AddWorker("a", true, 16, BoundaryRule::kUsable);
  const auto b = AddWorker("b");
  const auto c = AddWorker("c", true, 16, BoundaryRule::kUsable);
  Store(*a, IndexSet::kMemory, 9);
  Store(*a, IndexSet::kDevice, 5);
  Store(*b, IndexSet::kDevice, 6);
  Store(*c, IndexSet::kDevice, 10);
  a->boundaries.Add(std::vector{chain_[1], chain_[7], chain_[9]});
  ASSERT_TRUE(router_.Route(Query("b"), answer_).ok());
  ASSERT_EQ(answer_.holders, 2u) << "no boundary of c is usable";
  EXPECT_EQ(answer_.matches[0].worker, a->slot());
  EXPECT_EQ(answer_.matches[0].blocks, (std::array<uint32_t, 3>{5, 8, 0}));
  EXPECT_EQ(answer_.matches[1].worker, b->slot());
  ASSERT_EQ(answer_.sources.size(), 1u);
  EXPECT_EQ(answer_.sources[0].span.first_block, 6u);
  EXPECT_EQ(answer_.sources[0].span.block_count, 2u) << "up to the boundary, where the windows are";
  EXPECT_EQ(answer_.cost().hit_tokens(), 8 * 16u);

  a->boundaries.Remove(std::vector{chain_[7]});
  ASSERT_TRUE(router_.Route(Query(), answer_).ok());
  EXPECT_EQ(answer_.matches[0].worker, b->slot());
  EXPECT_EQ(answer_.matches[1].blocks, (std::array<uint32_t, 3>{2, 2, 0}));
}

TEST_F(RouterTest, WorkersOfWhichAllLayersSlideAreFoundByTheirBoundariesAlone) {
  const auto a = AddWorker("a", true, 16, BoundaryRule::kUsableAlone);
  AddWorker("b", true, 16, BoundaryRule::kUsableAlone);
  a->boundaries.Add(std::vector{chain_[2], chain_[6], TestChain(root_, 1, 10)[8]});
  ASSERT_TRUE(router_.Route(Query(), answer_).ok());
  ASSERT_EQ(answer_.matches.size(), 1u);
  EXPECT_EQ(answer_.chosen().description().id, "a");
  EXPECT_EQ(answer_.matches[0].blocks, (std::array<uint32_t, 3>{0, 7, 0}));
  EXPECT_EQ(answer_.cost().hit_tokens(), 7 * 16u);
}

TEST_F(RouterTest, SourcesCarryTicketsForThisPairOfIncarnations) {
  const auto a = AddWorker("a");
  const auto b = AddWorker("b");
  Store(*b, IndexSet::kMemory, 6);
  ASSERT_TRUE(router_.Route(Query("a"), answer_).ok());
  ASSERT_EQ(answer_.sources.size(), 1u);
  const RouteSource& source = answer_.sources[0];
  EXPECT_EQ(source.peer, b.get());
  EXPECT_EQ(source.bytes, 6u << 20);
  const auto ticket = OpenTicket(source.ticket, ticket_key_, clock_.Now());
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_EQ(ticket->sender, "b");
  EXPECT_EQ(ticket->sender_incarnation, b->description().incarnation);
  EXPECT_EQ(ticket->receiver, "a");
  EXPECT_EQ(ticket->receiver_incarnation, a->description().incarnation);
  EXPECT_EQ(ticket->root, root_);
  EXPECT_EQ(ticket->first_block, 0u);
  EXPECT_EQ(ticket->block_count, 6u);
  EXPECT_EQ(ticket->last_key, chain_[5]);
  EXPECT_FALSE(OpenTicket(source.ticket, ticket_key_, clock_.Now() + absl::Seconds(21)).ok());
}

TEST_F(RouterTest, ReadyBeforeWarmingNeverDrainingOrLost) {
  const auto warming = AddWorker("a", /*warmed=*/false);
  ASSERT_TRUE(router_.Route(Query(), answer_).ok());
  EXPECT_EQ(answer_.chosen().description().id, "a");
  const auto ready = AddWorker("b");
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(router_.Route(Query(), answer_).ok());
    EXPECT_EQ(answer_.chosen().description().id, "b");
  }
  ready->OrderDrain(true);
  ASSERT_TRUE(router_.Route(Query(), answer_).ok());
  EXPECT_EQ(answer_.chosen().description().id, "a");
  warming->OrderDrain(true);
  EXPECT_EQ(router_.Route(Query(), answer_).code(), absl::StatusCode::kUnavailable);
  ready->OrderDrain(false);
  clock_.AdvanceTo(clock_.Now() + absl::Seconds(5));  // nobody looked yet, but its heartbeats stopped
  EXPECT_EQ(router_.Route(Query(), answer_).code(), absl::StatusCode::kUnavailable);
}

TEST_F(RouterTest, DrainingWorkerStillServesPeers) {
  AddWorker("a");
  const auto b = AddWorker("b");
  Store(*b, IndexSet::kDevice, 10);
  b->OrderDrain(true);
  ASSERT_TRUE(router_.Route(Query(), answer_).ok());
  EXPECT_EQ(answer_.chosen().description().id, "a");
  ASSERT_EQ(answer_.sources.size(), 1u);
  EXPECT_EQ(answer_.cost().pull_tokens, 160u);
}

TEST_F(RouterTest, NamedWorkerOrNone) {
  AddWorker("a");
  const auto b = AddWorker("b");
  ASSERT_TRUE(router_.Route(Query("b"), answer_).ok());
  EXPECT_EQ(answer_.chosen().description().id, "b");
  EXPECT_EQ(answer_.placement.costs.size(), 1u);
  b->OrderDrain(true);
  EXPECT_EQ(router_.Route(Query("b"), answer_).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(router_.Route(Query("nobody"), answer_).code(), absl::StatusCode::kUnavailable);
}

TEST_F(RouterTest, WorkersOfAnotherBlockSizeAreNoCandidates) {
  AddWorker("a", true, 32);
  EXPECT_EQ(router_.Route(Query(), answer_).code(), absl::StatusCode::kUnavailable);
  RouteQuery by_root = Query();
  by_root.block_tokens = 0;
  EXPECT_TRUE(router_.Route(by_root, answer_).ok());
}

TEST_F(RouterTest, LossyCopiesAreHitsOnlyWhenAccepted) {
  const auto a = AddWorker("a");
  Store(*a, IndexSet::kDevice, 10, LossyFormats(8));
  ASSERT_TRUE(router_.Route(Query(), answer_).ok());
  EXPECT_EQ(answer_.cost().hit_tokens(), 0u);
  RouteQuery lossy = Query();
  lossy.prefix.accepted = LossyFormats(8);
  ASSERT_TRUE(router_.Route(lossy, answer_).ok());
  EXPECT_EQ(answer_.cost().hit_tokens(), 160u);
}

TEST_F(RouterTest, PrefetchPullsWhateverItCosts) {
  AddWorker("a");
  const auto b = AddWorker("b");
  EXPECT_EQ(router_.PlanPrefetch(Query("a"), answer_).code(), absl::StatusCode::kNotFound);
  Store(*b, IndexSet::kDisk, 10);
  EXPECT_EQ(router_.PlanPrefetch(Query("nobody"), answer_).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(router_.PlanPrefetch(Query("a"), answer_).ok());
  ASSERT_EQ(answer_.sources.size(), 1u);
  EXPECT_EQ(answer_.sources[0].span.block_count, 10u);
  EXPECT_TRUE(OpenTicket(answer_.sources[0].ticket, ticket_key_, clock_.Now()).ok());
  ASSERT_TRUE(router_.PlanPrefetch(Query("b"), answer_).ok());
  EXPECT_TRUE(answer_.sources.empty());
  EXPECT_EQ(placer_.Stats().in_flight, 0u);
}

TEST_F(RouterTest, HoldersHaveTheWholePrefix) {
  const auto a = AddWorker("a");
  const auto b = AddWorker("b");
  Store(*a, IndexSet::kDisk, 10);
  Store(*b, IndexSet::kDevice, 9);
  const auto holders = router_.Holders({.root = root_, .keys = chain_});
  ASSERT_EQ(holders.size(), 1u);
  EXPECT_EQ(holders[0], a);
}

TEST_F(RouterTest, TicketLifeIsLimited) {
  EXPECT_TRUE(RouterOptions().Validate().ok());
  EXPECT_FALSE((RouterOptions{.ticket_life = absl::Seconds(31)}).Validate().ok());
  EXPECT_FALSE((RouterOptions{.ticket_life = absl::ZeroDuration()}).Validate().ok());
}

}  // namespace
}  // namespace kvmesh
