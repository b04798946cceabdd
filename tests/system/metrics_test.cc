// What an operator's dashboard reads: the metrics of both programs after prompts that were computed, resumed and
// pulled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/generate.h"
#include "tests/support/await.h"
#include "tests/support/process_cluster.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

class MetricsTest : public testing::Test {
 protected:
  // 35 tokens on worker 0, which computes them, and on worker 1, which pulls two blocks of 16.
  void SetUp() override {
    ASSERT_TRUE(cluster_.Start());
    for (size_t i = 0; i < 2; ++i) {
      ClusterGenerateRequest request;
      request.text = "And the LORD spake unto Moses, say:";
      request.max_tokens = 1;
      request.worker_id = cluster_.worker_id(i);
      const auto result = GenerateOnCluster(cluster_.client(), request);
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_EQ(result->prompt_tokens, 35u);
      ASSERT_EQ(result->hits.peer(), i == 0 ? 0u : 32u);
      ASSERT_TRUE(cluster_.IndexEqualsWorkers());
    }
  }
  static std::string Metrics(int port) {
    std::string text;
    EXPECT_TRUE(HttpGet(port, "/metrics", &text));
    return text;
  }

  ProcessCluster cluster_{ClusterConfig{
      .workers = {WorkerConfig{.host_blocks = 8, .disk = true}, WorkerConfig{.host_blocks = 8, .disk = true}}}};
};

TEST_F(MetricsTest, WorkersCountWhatWasAskedForFoundAndMoved) {
  const std::string first = Metrics(cluster_.ops_port(0));
  const std::string second = Metrics(cluster_.ops_port(1));
  for (const std::string& text : {first, second}) {
    for (const char* line : {
             "\nkvmesh_worker_requested_tokens_total 32\n",
             "\nkvmesh_worker_resume_seconds_count 1\n",
             "\nkvmesh_worker_draft_tokens_total{result=\"accepted\"} 0\n",
             "\nkvmesh_worker_draft_tokens_total{result=\"rejected\"} 0\n",
             "\nkvmesh_worker_resume_seconds_bucket{le=\"+Inf\"} 1\n",
             "\nkvmesh_worker_hit_tokens_total{source=\"device\"} 0\n",
             "\nkvmesh_worker_hit_tokens_total{source=\"host\"} 0\n",
             "\nkvmesh_worker_hit_tokens_total{source=\"disk\"} 0\n",
             "\nkvmesh_worker_promoted_bytes_total{tier=\"host\"} 0\n",
             "\nkvmesh_worker_promoted_bytes_total{tier=\"disk\"} 0\n",
             "\nkvmesh_worker_demoted_bytes_total{tier=\"host\"} 0\n",
             "\nkvmesh_worker_demoted_bytes_total{tier=\"disk\"} ",
             "\nkvmesh_worker_evicted_blocks_total{tier=\"device\"} 0\n",
             "\nkvmesh_worker_evicted_blocks_total{tier=\"host\"} 0\n",
             "\nkvmesh_worker_evicted_blocks_total{tier=\"disk\"} 0\n",
             "\nkvmesh_worker_used_blocks{tier=\"device\"} 2\n",
             "\nkvmesh_worker_used_blocks{tier=\"host\"} 0\n",
             "\nkvmesh_worker_used_blocks{tier=\"disk\"} ",
             "\nkvmesh_worker_capacity_blocks{tier=\"device\"} 256\n",
             "\nkvmesh_worker_capacity_blocks{tier=\"host\"} 8\n",
             "\nkvmesh_worker_capacity_blocks{tier=\"disk\"} ",
         }) {
      EXPECT_THAT(text, HasSubstr(line));
    }
  }
  EXPECT_THAT(first, HasSubstr("\nkvmesh_worker_hit_tokens_total{source=\"peer\"} 0\n"));
  EXPECT_THAT(first, HasSubstr("\nkvmesh_worker_missed_tokens_total{reason=\"absent\"} 32\n"));
  EXPECT_THAT(second, HasSubstr("\nkvmesh_worker_hit_tokens_total{source=\"peer\"} 32\n"));
  EXPECT_THAT(second, HasSubstr("\nkvmesh_worker_fetch_seconds_count{transport=\"grpc\"} 1\n"));
  EXPECT_THAT(second, HasSubstr("\nkvmesh_worker_fetch_seconds_bucket{transport=\"grpc\",le=\"+Inf\"} 1\n"));
  // What one pulled, the other served.
  const auto value = [](const std::string& text, const std::string& name) {
    const size_t at = text.find(absl::StrCat("\n", name, " "));
    return at == std::string::npos ? std::string("absent")
                                   : text.substr(at + name.size() + 2, text.find('\n', at + 1) - at - name.size() - 2);
  };
  const std::string fetched = value(second, "kvmesh_worker_fetched_bytes_total{transport=\"grpc\"}");
  EXPECT_EQ(value(first, "kvmesh_worker_served_bytes_total"), fetched);
  EXPECT_GT(std::atof(fetched.c_str()), 0) << fetched;
}

TEST_F(MetricsTest, CoordinatorCountsPredictedAndActualHits) {
  const std::string text = Metrics(cluster_.coordinator_ops_port());
  for (const char* line : {
           "\nkvmesh_coordinator_requested_tokens_total 64\n",
           "\nkvmesh_coordinator_predicted_hit_tokens_total{set=\"device\"} 0\n",
           "\nkvmesh_coordinator_predicted_hit_tokens_total{set=\"memory\"} 0\n",
           "\nkvmesh_coordinator_predicted_hit_tokens_total{set=\"disk\"} 0\n",
           "\nkvmesh_coordinator_predicted_hit_tokens_total{set=\"peer\"} 32\n",
           "\nkvmesh_coordinator_actual_hit_tokens_total{tier=\"device\"} 0\n",
           "\nkvmesh_coordinator_actual_hit_tokens_total{tier=\"host\"} 0\n",
           "\nkvmesh_coordinator_actual_hit_tokens_total{tier=\"disk\"} 0\n",
           "\nkvmesh_coordinator_actual_hit_tokens_total{tier=\"peer\"} 32\n",
           "\nkvmesh_coordinator_route_seconds_count 2\n",
           "\nkvmesh_coordinator_workers{state=\"ready\"} 2\n",
           "\nkvmesh_coordinator_index_blocks 2\n",
           "\nkvmesh_coordinator_index_bytes ",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(MetricsTest, ReadmeNamesEveryMetric) {
  const char* source = std::getenv("KVMESH_SOURCE_DIR");
  if (source == nullptr) GTEST_SKIP() << "KVMESH_SOURCE_DIR is not set; run through ctest";
  std::ifstream in(absl::StrCat(source, "/README.md"));
  const std::string readme{std::istreambuf_iterator<char>(in), {}};
  size_t metrics = 0;
  for (const int port : {cluster_.coordinator_ops_port(), cluster_.ops_port(0), cluster_.ops_port(1)}) {
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(Metrics(port), '\n'))) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');  // # TYPE name kind
      if (words.size() != 4 || words[1] != "TYPE") continue;
      ++metrics;
      EXPECT_TRUE(absl::StrContains(readme, absl::StrCat("`", words[2], "`")) ||
                  absl::StrContains(readme, absl::StrCat("`", words[2], "{")))
          << words[2];
    }
  }
  EXPECT_GT(metrics, 30u);
}

TEST_F(MetricsTest, PromtoolFindsNothingToCorrect) {
  if (std::system("promtool --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "promtool is not installed";
  TempDir folder;
  for (const int port : {cluster_.coordinator_ops_port(), cluster_.ops_port(0), cluster_.ops_port(1)}) {
    std::ofstream(folder / "metrics") << Metrics(port);
    EXPECT_EQ(std::system(
                  absl::StrCat("promtool check metrics <", folder / "metrics", " >", folder / "out", " 2>&1").c_str()),
              0)
        << std::ifstream(folder / "out").rdbuf();
  }
}

}  // namespace
}  // namespace kvmesh
