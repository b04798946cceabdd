#include "kvstore/tiers/event_log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/gate.h"

namespace kvmesh {
namespace {

StoreEvent Stored(uint8_t name) {
  StoreEvent event;
  event.key.bytes.fill(name);
  return event;
}

TEST(EventLogTest, SequencesCountUpFromOne) {
  EventLog log(10);
  EXPECT_EQ(log.last(), 0u);
  EXPECT_EQ(log.Append(Stored(1)), 1u);
  EXPECT_EQ(log.Append(Stored(2)), 2u);
  EXPECT_EQ(log.last(), 2u);
}

TEST(EventLogTest, ReaderGetsWhatFollowsItsCursorUpToItsLimit) {
  EventLog log(10);
  EXPECT_TRUE(log.ReadAfter(0, 10)->empty());
  for (uint8_t i = 1; i <= 5; ++i) log.Append(Stored(i));
  const std::vector<StoreEvent> two = *log.ReadAfter(1, 2);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].sequence, 2u);
  EXPECT_EQ(two[0].key, Stored(2).key);
  EXPECT_EQ(two[1].sequence, 3u);
  EXPECT_EQ(log.ReadAfter(0, SIZE_MAX)->size(), 5u);
  EXPECT_TRUE(log.ReadAfter(5, 10)->empty());
  EXPECT_TRUE(log.ReadAfter(0, 0)->empty());
  EXPECT_TRUE(log.ReadAfter(99, 10)->empty());
}

TEST(EventLogTest, ReaderThatFellBehindIsTold) {
  EventLog log(3);
  for (uint8_t i = 1; i <= 5; ++i) log.Append(Stored(i));
  EXPECT_EQ(log.ReadAfter(0, 10).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(log.ReadAfter(1, 10).status().code(), absl::StatusCode::kOutOfRange);
  const std::vector<StoreEvent> kept = *log.ReadAfter(2, 10);
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept.front().sequence, 3u);
  EXPECT_EQ(kept.back().sequence, 5u);
  EXPECT_EQ(log.last(), 5u);
}

TEST(EventLogTest, WaitReturnsAtOnceWhenThereIsAnEvent) {
  EventLog log(3);
  log.Append(Stored(1));
  log.WaitAfter(0, absl::InfiniteDuration());
}

TEST(EventLogTest, WaitEndsAtItsTimeout) {
  EventLog log(3);
  const absl::Time start = absl::Now();
  log.WaitAfter(0, absl::Milliseconds(20));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(19));
  log.WaitAfter(0, -absl::Seconds(1));
}

TEST(EventLogTest, AppendEndsEveryWait) {
  EventLog log(100);
  constexpr uint8_t kEvents = 50;
  std::vector<std::thread> readers;
  std::vector<uint64_t> seen(3);
  for (uint64_t& cursor : seen) {
    readers.emplace_back([&log, &cursor] {
      const absl::Time deadline = absl::Now() + kTestPatience;
      while (cursor < kEvents && absl::Now() < deadline) {
        log.WaitAfter(cursor, kTestPatience);
        const std::vector<StoreEvent> events = *log.ReadAfter(cursor, 7);
        for (const StoreEvent& event : events) {
          EXPECT_EQ(event.sequence, cursor + 1);
          cursor = event.sequence;
        }
      }
    });
  }
  for (uint8_t i = 1; i <= kEvents; ++i) log.Append(Stored(i));
  for (std::thread& reader : readers) reader.join();
  for (const uint64_t cursor : seen) EXPECT_EQ(cursor, kEvents);
}

TEST(EventLogTest, WakeEndsAWaitWithoutAnEvent) {
  EventLog log(3);
  std::atomic<bool> ended = false;
  std::thread waiter([&] {
    log.WaitAfter(0, kTestPatience);
    ended = true;
  });
  // A wake before the wait begins does not count, so it is repeated until it was seen.
  const absl::Time start = absl::Now();
  while (!ended) {
    log.Wake();
    std::this_thread::yield();
  }
  waiter.join();
  EXPECT_LT(absl::Now() - start, kTestPatience);
  EXPECT_EQ(log.last(), 0u);
}

}  // namespace
}  // namespace kvmesh
