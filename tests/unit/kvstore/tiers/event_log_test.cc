#include "kvstore/tiers/event_log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/await.h"
#include "tests/support/gate.h"
#include "tests/support/log_waiter.h"

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

TEST(EventLogTest, AHookRunsWithEachAppendWhileItLives) {
  EventLog log(3);
  int first_runs = 0;
  int second_runs = 0;
  const AppendHook first = log.OnAppend([&] { ++first_runs; });
  {
    AppendHook second = log.OnAppend([&] { ++second_runs; });
    log.Append(Stored(1));
    const AppendHook moved = std::move(second);
    log.Append(Stored(2));
  }
  log.Append(Stored(3));
  EXPECT_EQ(first_runs, 3);
  EXPECT_EQ(second_runs, 2);
}

TEST(EventLogTest, AHookNeverRunsOnceItIsDestroyed) {
  EventLog log(3);
  std::atomic<bool> done = false;
  std::thread writer([&] {
    while (!done) log.Append(Stored(1));
  });
  for (int round = 0; round < 1000; ++round) {
    auto target = std::make_unique<std::atomic<int>>(0);  // use after its end is an error to sanitizers
    const AppendHook hook = log.OnAppend([&counter = *target] { ++counter; });
    const uint64_t seen = log.last();
    if (round % 100 == 0) {
      EXPECT_TRUE(Await(kTestPatience, [&] { return log.last() > seen && *target > 0; }));
    }
  }
  done = true;
  writer.join();
}

TEST(EventLogTest, ReadersThatAHookWakesMissNothing) {
  EventLog log(100);
  constexpr uint8_t kEvents = 50;
  std::vector<std::thread> readers;
  std::vector<uint64_t> seen(3);
  for (uint64_t& cursor : seen) {
    readers.emplace_back([&log, &cursor] {
      LogWaiter news(log);
      while (cursor < kEvents) {
        ASSERT_TRUE(news.AwaitAfter(cursor));
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

}  // namespace
}  // namespace kvmesh
