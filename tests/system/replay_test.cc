// `kvmesh replay` of the recorded conversations: the hits that an unlimited, a limited and a tiered cluster must find.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_dir.h"

namespace kvmesh {
namespace {

using nlohmann::json;

constexpr int kRequests = 12031;
constexpr int kBlocks = 288500;
constexpr int kAllHits = 105710;  // what is left to find when nothing is ever evicted
constexpr double kRateTolerance = 0.003;

class TraceTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* source = std::getenv("KVMESH_SOURCE_DIR");
    if (source == nullptr) GTEST_SKIP() << "KVMESH_SOURCE_DIR is not set; run through ctest";
    trace_ = absl::StrCat(source, "/../shared/data/traces/conversation_trace.jsonl");
    if (!std::filesystem::exists(trace_)) GTEST_SKIP() << trace_ << " is missing";
  }

  json Replay(const std::string& flags) {
    std::vector<std::string> argv = {
        KVMESH_BIN_DIR "/kvmesh", "replay", "--trace", trace_, "--format", "mooncake", "--json"};
    for (const auto flag : absl::StrSplit(flags, ' ')) argv.emplace_back(flag);
    const EndedProgram ended = RunProgram(folder_.path(), argv, absl::Seconds(120));
    EXPECT_EQ(ended.code, 0) << flags << "\n" << ended.error;
    json out = json::parse(ended.output, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(out.is_object()) << flags << "\n" << ended.output;
    if (!out.is_object()) return json::object();
    EXPECT_EQ(out.at("requests"), kRequests) << flags;
    EXPECT_EQ(out.at("blocks"), kBlocks) << flags;
    const json& tiers = out.at("hits_by_tier");
    EXPECT_EQ(tiers.at("device").get<int>() + tiers.at("host").get<int>() + tiers.at("disk").get<int>() +
                  tiers.at("peer").get<int>(),
              out.at("hit_blocks"))
        << flags;
    return out;
  }

  TempDir folder_;
  std::string trace_;
};

TEST_F(TraceTest, UnlimitedWorkerFindsEveryHitByteForByte) {
  const json out = Replay("--workers 1 --capacity-blocks 0 --verify");
  ASSERT_FALSE(out.empty());
  EXPECT_EQ(out.at("hit_blocks"), kAllHits);
  EXPECT_EQ(out.at("mismatches"), 0);
  EXPECT_EQ(out.at("bytes_verified"), uint64_t{kAllHits} * 4096);
  EXPECT_LE(out.at("seconds"), 50);
}

TEST_F(TraceTest, TwoTiersHitAsOnePoolOfBothSizes) {
  const json pool = Replay("--workers 1 --capacity-blocks 10000 --policy lru");
  const json tiers = Replay("--workers 1 --capacity-blocks 4000,6000 --policy lru");
  ASSERT_FALSE(pool.empty() || tiers.empty());
  EXPECT_GE(pool.at("hit_rate"), 0.2112 - kRateTolerance);
  EXPECT_LE(pool.at("hit_rate"), 0.2116 + kRateTolerance);
  EXPECT_NEAR(tiers.at("hit_rate").get<double>(), pool.at("hit_rate").get<double>(), kRateTolerance);
  EXPECT_GT(tiers.at("hits_by_tier").at("host"), 0);
}

TEST_F(TraceTest, FourWorkersInTurnFindEveryHitWithTheirPeersHelp) {
  const json out = Replay("--workers 4 --capacity-blocks 0 --route round-robin");
  ASSERT_FALSE(out.empty());
  EXPECT_EQ(out.at("hit_blocks"), kAllHits);
  EXPECT_GT(out.at("hits_by_tier").at("peer"), 0);
}

TEST_F(TraceTest, PlacementFindsEveryHitAndSpreadsTheRequests) {
  const json out = Replay("--workers 4 --capacity-blocks 0 --route placement");
  ASSERT_FALSE(out.empty());
  EXPECT_EQ(out.at("hit_blocks"), kAllHits);
  EXPECT_EQ(out.at("requests_by_worker").size(), 4u);
  for (const auto& [worker, requests] : out.at("requests_by_worker").items()) {
    EXPECT_GE(requests, 0.15 * kRequests) << worker;
    EXPECT_LE(requests, 0.35 * kRequests) << worker;
  }
}

}  // namespace
}  // namespace kvmesh
