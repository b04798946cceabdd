#include "worker/model/parallel_for.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace kvmesh {
namespace {

TEST(ParallelRunnerTest, EveryPartRunsOnceBeforeRunReturns) {
  for (const int32_t threads : {1, 2, 5}) {
    ParallelRunner runner(threads);
    for (const int64_t parts : {0, 1, 2, 7, 100}) {
      std::vector<std::atomic<int>> counts(static_cast<size_t>(parts));
      runner.Run(parts, [&](int64_t part) { ++counts[static_cast<size_t>(part)]; });
      for (const std::atomic<int>& count : counts) EXPECT_EQ(count, 1) << threads << " threads, " << parts << " parts";
    }
  }
}

TEST(ParallelRunnerTest, CallersShareTheThreads) {
  ParallelRunner runner(3);
  std::atomic<int64_t> sum = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) runner.Run(8, [&](int64_t part) { sum += part; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 100 * 28);
}

}  // namespace
}  // namespace kvmesh
