#include "kvstore/service/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsTest, WritesEveryTypeWithLabels) {
  Metrics metrics;
  metrics.Counter("kvmesh_hits_total", "Hits", {{"tier", "host"}}).Increment(3);
  metrics.Gauge("kvmesh_pool_blocks", "Blocks").Set(7);
  metrics.Histogram("kvmesh_fetch_seconds", "Fetch time").Observe(0.002);
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("# HELP kvmesh_hits_total Hits\n# TYPE kvmesh_hits_total counter\n"));
  EXPECT_THAT(text, HasSubstr("kvmesh_hits_total{tier=\"host\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("kvmesh_pool_blocks 7\n"));
  EXPECT_THAT(text, HasSubstr("kvmesh_fetch_seconds_bucket{le=\"0.001\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("kvmesh_fetch_seconds_bucket{le=\"0.0025\"} 1\n"));
}

TEST(MetricsTest, CountersRiseToACountAndNeverFall) {
  Metrics metrics;
  prometheus::Counter& counter = metrics.Counter("kvmesh_a_total", "A");
  RaiseTo(counter, 5);
  EXPECT_EQ(counter.Value(), 5);
  RaiseTo(counter, 3);
  EXPECT_EQ(counter.Value(), 5);
  RaiseTo(counter, 9);
  EXPECT_EQ(counter.Value(), 9);
}

TEST(MetricsTest, SameNameAndLabelsAreTheSameObject) {
  Metrics metrics;
  auto& first = metrics.Counter("kvmesh_a_total", "A", {{"x", "1"}});
  EXPECT_EQ(&first, &metrics.Counter("kvmesh_a_total", "A", {{"x", "1"}}));
  EXPECT_NE(&first, &metrics.Counter("kvmesh_a_total", "A", {{"x", "2"}}));
}

TEST(MetricsTest, SeriesOfANameAreBounded) {
  Metrics metrics;
  for (size_t i = 0; i < kMaxSeriesPerName + 10; ++i) {
    metrics.Counter("kvmesh_calls_total", "Calls", {{"tenant", absl::StrCat("t", i)}}).Increment();
  }
  EXPECT_THAT(metrics.Text(), HasSubstr("kvmesh_calls_total{tenant=\"_other\"} 10\n"));
  metrics.Counter("kvmesh_calls_total", "Calls", {{"tenant", "t0"}}).Increment();
  EXPECT_THAT(metrics.Text(), HasSubstr("kvmesh_calls_total{tenant=\"t0\"} 2\n"));
}

TEST(MetricsTest, HooksRunBeforeEachCollectionUntilTheyGo) {
  Metrics metrics;
  auto& gauge = metrics.Gauge("kvmesh_depth", "Depth");
  double depth = 0;
  {
    const CollectHook hook = metrics.OnCollect([&] { gauge.Set(++depth); });
    EXPECT_THAT(metrics.Text(), HasSubstr("kvmesh_depth 1\n"));
    EXPECT_THAT(metrics.Text(), HasSubstr("kvmesh_depth 2\n"));
  }
  EXPECT_THAT(metrics.Text(), HasSubstr("kvmesh_depth 2\n"));
}

TEST(MetricsTest, HookMovesAndMayOutliveTheMetrics) {
  int calls = 0;
  CollectHook kept;
  {
    Metrics metrics;
    CollectHook first = metrics.OnCollect([&] { ++calls; });
    kept = std::move(first);
    metrics.Text();
    EXPECT_EQ(calls, 1);
    kept = metrics.OnCollect([&] { calls += 10; });
    metrics.Text();
    EXPECT_EQ(calls, 11);
  }
  kept = CollectHook();
  EXPECT_EQ(calls, 11);
}

TEST(MetricsTest, ManyThreadsMayCountAndCollect) {
  Metrics metrics;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&metrics] {
      for (int k = 0; k < 200; ++k) {
        metrics.Counter("kvmesh_n_total", "N", {{"k", absl::StrCat(k % 8)}}).Increment();
        if (k % 50 == 0) {
          const CollectHook hook = metrics.OnCollect([] {});
          metrics.Text();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  double sum = 0;
  for (int k = 0; k < 8; ++k) sum += metrics.Counter("kvmesh_n_total", "N", {{"k", absl::StrCat(k)}}).Value();
  EXPECT_EQ(sum, 800);
}

TEST(MetricsDeathTest, WrongNamesAbort) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  Metrics metrics;
  EXPECT_DEATH(metrics.Counter("kvmesh_hits", "Hits"), "kvmesh_hits: counters and only counters end in _total");
  EXPECT_DEATH(metrics.Gauge("kvmesh_hits_total", "Hits"), "only counters end in _total");
  EXPECT_DEATH(metrics.Counter("hits_total", "Hits"), "must be kvmesh_");
  EXPECT_DEATH(metrics.Gauge("kvmesh_Pool", "Pool"), "must be kvmesh_");
  EXPECT_DEATH(metrics.Gauge("kvmesh_pool_count", "Pool"), "suffix that histograms use");
  EXPECT_DEATH(metrics.Gauge("kvmesh_pool", ""), "needs a help text");
  EXPECT_DEATH(metrics.Gauge("kvmesh_pool", "Pool", {{"le", "1"}}), "label name");
  EXPECT_DEATH(metrics.Gauge("kvmesh_pool", "Pool", {{"__x", "1"}}), "label name");
  EXPECT_DEATH(metrics.Histogram("kvmesh_h_seconds", "H", {}, {1, 1}), "buckets must ascend");
  EXPECT_DEATH((metrics.Gauge("kvmesh_pool", "Pool"), metrics.Histogram("kvmesh_pool", "Pool")), "used for two types");
}

TEST(MetricsTest, PromtoolFindsNoFault) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0) GTEST_SKIP() << "no promtool";
  Metrics metrics;
  metrics.Counter("kvmesh_hits_total", "Hits", {{"tier", "host"}, {"why", "a \"b\"\n\\c"}}).Increment();
  metrics.Gauge("kvmesh_pool_bytes", "Bytes of the pool").Set(1e12);
  metrics.Histogram("kvmesh_fetch_seconds", "Time of a fetch", {{"peer", "w"}}).Observe(0.3);
  std::FILE* promtool = popen("promtool check metrics 2>&1 >&2", "w");
  ASSERT_NE(promtool, nullptr);
  const std::string text = metrics.Text();
  ASSERT_EQ(std::fwrite(text.data(), 1, text.size(), promtool), text.size());
  EXPECT_EQ(pclose(promtool), 0) << text;
}

}  // namespace
}  // namespace kvmesh
