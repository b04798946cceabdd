#include "worker/engine/sequence_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/await.h"
#include "tests/unit/worker/engine/sequence_world.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

class SequenceTableTest : public testing::Test {
 protected:
  static constexpr absl::string_view kTenant = "tenant";
  static constexpr SequenceTable::Options kOptions = {.max_sequences = 4,
                                                      .max_sessions = 2,
                                                      .default_lease = absl::Seconds(30),
                                                      .max_lease = absl::Minutes(10),
                                                      .max_life = absl::Hours(1)};

  std::unique_ptr<Sequence> NewSequence() { return world_.NewSequence(TokensFrom(0, 20)); }
  // A sequence under its own lease; the default one when zero.
  SequenceId Insert(absl::Duration lease = absl::ZeroDuration(), uint64_t session = 0) {
    const absl::StatusOr<SequenceId> id = table_.Insert(NewSequence(), session, lease, kTenant);
    EXPECT_TRUE(id.ok()) << id.status();
    return *id;
  }
  absl::StatusOr<SequenceTable::Borrowed> Borrow(SequenceId id, absl::string_view tenant = kTenant) {
    return table_.Borrow(id, tenant, absl::InfiniteFuture());
  }
  void Advance(absl::Duration by) { world_.clock.AdvanceTo(world_.clock.Now() + by); }
  absl::Time Now() const { return world_.clock.Now(); }

  SequenceWorld world_{{.device_slots = 32, .max_pinned_fraction = 1.0}};
  SequenceTable table_{kOptions, world_.clock};
};

TEST_F(SequenceTableTest, ABorrowRenewsTheLeaseAndAProbeDoesNot) {
  const SequenceId id = Insert();
  EXPECT_EQ(*table_.LeaseDeadline(id), Now() + absl::Seconds(30));
  Advance(absl::Seconds(29));
  const absl::Time before = Now() + absl::Seconds(1);
  EXPECT_EQ(*table_.LeaseDeadline(id), before);
  EXPECT_TRUE(Borrow(id).ok());
  EXPECT_EQ(*table_.LeaseDeadline(id), Now() + absl::Seconds(30));
  Advance(absl::Seconds(30));
  EXPECT_TRUE(absl::IsNotFound(Borrow(id).status()));
  EXPECT_EQ(table_.open_sequences(), 1u);
  EXPECT_EQ(table_.CloseExpired(), 1u);
  EXPECT_EQ(table_.open_sequences(), 0u);
  EXPECT_TRUE(absl::IsNotFound(table_.Close(id, kTenant)));
  EXPECT_TRUE(absl::IsNotFound(table_.LeaseDeadline(id).status()));
}

TEST_F(SequenceTableTest, AnotherTenantsSequencesAndSessionsDoNotExist) {
  const uint64_t session = *table_.OpenSession("a");
  EXPECT_TRUE(absl::IsNotFound(table_.CheckRoom(session, absl::ZeroDuration(), "b")));
  EXPECT_TRUE(absl::IsNotFound(table_.Insert(NewSequence(), session, absl::ZeroDuration(), "b").status()));
  const SequenceId id = *table_.Insert(NewSequence(), session, absl::ZeroDuration(), "a");
  for (const char* other : {"b", ""}) {
    EXPECT_TRUE(absl::IsNotFound(Borrow(id, other).status()));
    EXPECT_TRUE(absl::IsNotFound(table_.Close(id, other)));
  }
  EXPECT_TRUE(Borrow(id, "a").ok());
  EXPECT_TRUE(table_.Close(id, "a").ok());
}

TEST_F(SequenceTableTest, ClosingLetsGoOfTheBlocks) {
  std::unique_ptr<Sequence> sequence = NewSequence();
  world_.AppendAll(*sequence);
  const SequenceId id = *table_.Insert(std::move(sequence), 0, absl::ZeroDuration(), kTenant);
  EXPECT_EQ(world_.store->GetBooks().pinned_blocks, 1u);
  EXPECT_EQ(world_.store->GetBooks().private_blocks, 1u);
  EXPECT_TRUE(table_.Close(id, kTenant).ok());
  world_.ExpectBalanced();
  EXPECT_TRUE(absl::IsNotFound(Borrow(id).status()));
}

TEST_F(SequenceTableTest, NoRenewalOutlivesTheMaximumLife) {
  const SequenceId id = Insert(absl::Minutes(10));
  const absl::Time end = Now() + absl::Hours(1);
  while (Now() + absl::Minutes(9) < end) {
    Advance(absl::Minutes(9));
    ASSERT_TRUE(Borrow(id).ok());
    ASSERT_LE(*table_.LeaseDeadline(id), end);
  }
  EXPECT_EQ(*table_.LeaseDeadline(id), end);
  world_.clock.AdvanceTo(end);
  EXPECT_TRUE(absl::IsNotFound(Borrow(id).status()));
  EXPECT_EQ(table_.CloseExpired(), 1u);
}

TEST_F(SequenceTableTest, ALeaseLongerThanTheMaximumLifeIsCutToIt) {
  SequenceTable table({.max_life = absl::Seconds(20)}, world_.clock);
  const SequenceId id = *table.Insert(NewSequence(), 0, absl::Seconds(25), kTenant);
  EXPECT_EQ(*table.LeaseDeadline(id), Now() + absl::Seconds(20));
}

TEST_F(SequenceTableTest, LeasesAreBounded) {
  EXPECT_TRUE(table_.Insert(NewSequence(), 0, absl::Minutes(10), kTenant).ok());
  EXPECT_THAT(table_.Insert(NewSequence(), 0, absl::Minutes(10) + absl::Milliseconds(1), kTenant).status().ToString(),
              HasSubstr("lease_ms: 600001, the limit is 600000"));
  EXPECT_TRUE(absl::IsInvalidArgument(table_.Insert(NewSequence(), 0, -absl::Seconds(1), kTenant).status()));
  EXPECT_EQ(table_.open_sequences(), 1u);
}

TEST_F(SequenceTableTest, SequencesAreBounded) {
  std::vector<SequenceId> ids;
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(table_.CheckRoom(0, absl::ZeroDuration(), kTenant).ok());
    ids.push_back(Insert());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(table_.CheckRoom(0, absl::ZeroDuration(), kTenant)));
  EXPECT_THAT(table_.Insert(NewSequence(), 0, absl::ZeroDuration(), kTenant).status().ToString(),
              HasSubstr("sequences: the limit of 4"));
  EXPECT_TRUE(table_.Close(ids[1], kTenant).ok());
  EXPECT_TRUE(table_.CheckRoom(0, absl::ZeroDuration(), kTenant).ok());
  const SequenceId next = Insert();
  for (const SequenceId id : ids) EXPECT_NE(next, id);
}

TEST_F(SequenceTableTest, ASessionsSequencesLiveAsLongAsIt) {
  const absl::StatusOr<uint64_t> session = table_.OpenSession(kTenant);
  ASSERT_TRUE(session.ok());
  const SequenceId inside = Insert(absl::ZeroDuration(), *session);
  const SequenceId also_inside = Insert(absl::Seconds(1), *session);
  const SequenceId outside = Insert(absl::Minutes(10));
  EXPECT_TRUE(absl::IsNotFound(table_.Insert(NewSequence(), *session + 1000, absl::ZeroDuration(), kTenant).status()));

  Advance(absl::Minutes(5));
  EXPECT_EQ(table_.CloseExpired(), 0u);
  EXPECT_TRUE(Borrow(also_inside).ok());
  table_.CloseSession(*session);
  EXPECT_EQ(table_.open_sessions(), 0u);
  EXPECT_TRUE(absl::IsNotFound(Borrow(inside).status()));
  EXPECT_TRUE(absl::IsNotFound(Borrow(also_inside).status()));
  EXPECT_TRUE(Borrow(outside).ok());
  EXPECT_TRUE(absl::IsNotFound(table_.Insert(NewSequence(), *session, absl::ZeroDuration(), kTenant).status()));
}

TEST_F(SequenceTableTest, ASessionsSequencesHaveAMaximumLifeToo) {
  const uint64_t session = *table_.OpenSession(kTenant);
  const SequenceId id = Insert(absl::ZeroDuration(), session);
  Advance(absl::Hours(1));
  EXPECT_TRUE(absl::IsNotFound(Borrow(id).status()));
  EXPECT_EQ(table_.CloseExpired(), 1u);
  EXPECT_EQ(table_.open_sessions(), 1u);
}

TEST_F(SequenceTableTest, SessionsAreBounded) {
  const uint64_t first = *table_.OpenSession(kTenant);
  EXPECT_TRUE(table_.OpenSession(kTenant).ok());
  EXPECT_THAT(table_.OpenSession(kTenant).status().ToString(), HasSubstr("sessions: the limit of 2"));
  table_.CloseSession(first);
  EXPECT_TRUE(table_.OpenSession(kTenant).ok());
}

TEST_F(SequenceTableTest, CloseAllClosesLeasesAndSessionsAlike) {
  const uint64_t session = *table_.OpenSession(kTenant);
  Insert();
  Insert(absl::ZeroDuration(), session);
  table_.CloseAll();
  EXPECT_EQ(table_.open_sequences(), 0u);
  world_.ExpectBalanced();
}

TEST_F(SequenceTableTest, ASequenceThatIsClosedInUseGoesWhenThatCallEnds) {
  using Close = std::function<void(SequenceId)>;
  const Close closes[] = {[this](SequenceId id) { EXPECT_TRUE(table_.Close(id, kTenant).ok()); },
                          [this](SequenceId) {
                            Advance(absl::Hours(2));
                            EXPECT_EQ(table_.CloseExpired(), 1u);
                          },
                          [this](SequenceId) { table_.CloseAll(); }};
  for (const Close& close : closes) {
    const SequenceId id = Insert();
    {
      const absl::StatusOr<SequenceTable::Borrowed> borrowed = Borrow(id);
      ASSERT_TRUE(borrowed.ok());
      close(id);
      // Gone for others at once, alive for the one who has it.
      EXPECT_EQ(table_.open_sequences(), 0u);
      EXPECT_TRUE(absl::IsNotFound(Borrow(id).status()));
      world_.AppendAll(**borrowed);
      EXPECT_EQ((*borrowed)->ready(), 20u);
      EXPECT_GT(world_.store->GetBooks().private_blocks + world_.store->GetBooks().pinned_blocks, 0u);
    }
    world_.ExpectBalanced();
  }
}

TEST_F(SequenceTableTest, AWaitForASequenceInUseEndsWithItAndAtItsDeadline) {
  const SequenceId id = Insert();
  std::optional<SequenceTable::Borrowed> borrowed;
  borrowed.emplace(*Borrow(id));
  EXPECT_TRUE(absl::IsDeadlineExceeded(table_.Borrow(id, kTenant, Now()).status()));
  std::thread waiter([&] { EXPECT_TRUE(Borrow(id).ok()); });
  const absl::Time deadline = Now() + absl::Seconds(5);
  std::thread late([&] {
    const absl::Status status = table_.Borrow(id, kTenant, deadline).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("sequence_id"));
  });
  Advance(absl::Seconds(5));
  late.join();
  borrowed.reset();
  waiter.join();
}

TEST_F(SequenceTableTest, OneCallAtATimeUsesASequence) {
  const SequenceId id = Insert(absl::Minutes(10));
  std::atomic<int> inside = 0;
  std::atomic<bool> overlapped = false;
  std::atomic<int> uses = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        if (t == 0 && i == 150) {
          EXPECT_TRUE(table_.Close(id, kTenant).ok());
        }
        absl::StatusOr<SequenceTable::Borrowed> borrowed = Borrow(id);
        if (!borrowed.ok()) continue;
        if (++inside != 1) overlapped = true;
        ++uses;
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(overlapped);
  EXPECT_GE(uses, 150);
  EXPECT_TRUE(absl::IsNotFound(Borrow(id).status()));
}

}  // namespace
}  // namespace kvmesh
