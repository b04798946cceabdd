#include "kvstore/base/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "tests/support/gate.h"

namespace kvmesh {
namespace {

TEST(ThreadPoolTest, RunsEverythingBeforeItIsDestroyed) {
  std::atomic<int> ran = 0;
  {
    ThreadPool pool(3);
    for (int i = 0; i < 1000; ++i) pool.Schedule([&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

TEST(ThreadPoolTest, WorkMayScheduleWorkEvenWhileItIsDestroyed) {
  std::atomic<int> ran = 0;
  {
    ThreadPool pool(2);
    pool.Schedule([&] {
      ++ran;
      for (int i = 0; i < 10; ++i) {
        pool.Schedule([&] {
          ++ran;
          pool.Schedule([&ran] { ++ran; });
        });
      }
    });
  }
  EXPECT_EQ(ran, 21);
}

TEST(ThreadPoolTest, ThreadsRunAtTheSameTime) {
  Gate meeting;
  meeting.Close();
  ThreadPool pool(3);
  for (int i = 0; i < 3; ++i) pool.Schedule([&meeting] { meeting.Pass(); });
  EXPECT_TRUE(meeting.AwaitWaiting(3));
  meeting.Open();
}

TEST(ThreadPoolTest, OneThreadKeepsTheOrder) {
  std::vector<int> order;
  {
    ThreadPool pool(1);
    for (int i = 0; i < 100; ++i) pool.Schedule([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(ThreadPoolDeathTest, NoThreadsIsAProgrammingError) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(ThreadPool(0), "check failed: threads >= 1");
}

}  // namespace
}  // namespace kvmesh
