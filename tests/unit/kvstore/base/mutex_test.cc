#include "kvstore/base/mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/support/gate.h"

namespace kvmesh {
namespace {

TEST(MutexTest, OneThreadAtATime) {
  Mutex mu;
  int count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 1000; ++k) {
        MutexLock lock(mu);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 4000);
}

TEST(MutexTest, LockMayBeReleasedAndTakenAgain) {
  Mutex mu;
  int count = 0;
  MutexLock lock(mu);
  lock.Unlock();
  std::thread other([&] {
    MutexLock others(mu);
    ++count;
  });
  other.join();
  lock.Lock();
  EXPECT_EQ(count, 1);
}

TEST(CondVarTest, WaitForTimesOut) {
  Mutex mu;
  CondVar changed;
  MutexLock lock(mu);
  const absl::Time start = absl::Now();
  while (changed.WaitFor(lock, absl::Milliseconds(5))) {
  }
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(4));
  EXPECT_FALSE(changed.WaitFor(lock, -absl::Hours(1)));
  EXPECT_FALSE(changed.WaitFor(lock, -absl::InfiniteDuration()));
}

TEST(CondVarTest, InfiniteWaitEndsWithANotification) {
  Mutex mu;
  CondVar changed;
  bool ready = false;
  std::thread notifier([&] {
    MutexLock lock(mu);
    ready = true;
    changed.NotifyAll();
  });
  {
    MutexLock lock(mu);
    while (!ready) changed.WaitFor(lock, absl::InfiniteDuration());
    EXPECT_TRUE(ready);
  }
  notifier.join();
}

TEST(SharedMutexTest, ReadersShareAndAWriterIsAlone) {
  SharedMutex mu;
  Gate meeting;
  meeting.Close();
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      ReaderLock read(mu);
      meeting.Pass();
    });
  }
  EXPECT_TRUE(meeting.AwaitWaiting(2)) << "both are inside at once";
  meeting.Open();
  for (std::thread& thread : threads) thread.join();
  threads.clear();

  int count = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 1000; ++k) {
        WriterLock write(mu);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ReaderLock read(mu);
  EXPECT_EQ(count, 4000);
}

}  // namespace
}  // namespace kvmesh
