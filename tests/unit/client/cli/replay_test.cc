#include "client/cli/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <list>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvstore/service/log.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

class ReplayTest : public testing::Test {
 protected:
  void SetUp() override { SetMinLogLevel(LogLevel::kError); }

  // Ten conversations of four turns, all behind one system prompt: turn t of conversation c is that prompt and the
  // blocks of its turns so far. A block is 3 at the first turn's end, then 3 more a turn.
  static std::vector<TraceRequest> Conversations() {
    std::vector<TraceRequest> trace;
    for (uint64_t turn = 0; turn < 4; ++turn) {
      for (uint64_t conversation = 0; conversation < 10; ++conversation) {
        TraceRequest request{.timestamp_ms = static_cast<int64_t>(trace.size()) * 100, .output_tokens = 10};
        request.hash_ids = {0, 1};
        for (uint64_t i = 0; i < 3 * (turn + 1); ++i) request.hash_ids.push_back(1000 * (conversation + 1) + i);
        trace.push_back(request);
      }
    }
    return trace;
  }
  static constexpr uint64_t kBlocks = 10 * (5 + 8 + 11 + 14);
  static constexpr uint64_t kDistinct = 2 + 10 * 12;

  static ReplayResult Play(const ReplayOptions& options) {
    const absl::StatusOr<ReplayResult> result = Replay(Conversations(), options);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    EXPECT_EQ(result->requests, 40u);
    EXPECT_EQ(result->blocks, kBlocks);
    EXPECT_EQ(result->mismatches, 0u);
    EXPECT_EQ(std::accumulate(result->hits.begin(), result->hits.end(), uint64_t{0}), result->hit_blocks);
    EXPECT_EQ(result->bytes_verified, options.verify ? result->hit_blocks * options.block_bytes : 0);
    return *result;
  }
};

TEST_F(ReplayTest, OneWorkerComputesEachBlockOnce) {
  const ReplayResult result = Play({.block_bytes = 512, .verify = true});
  EXPECT_EQ(result.hit_blocks, kBlocks - kDistinct);
  EXPECT_EQ(result.hits[static_cast<size_t>(HitSource::kDevice)], kBlocks - kDistinct);
  EXPECT_EQ(result.requests_by_worker.at("worker-0"), 40u);
}

TEST_F(ReplayTest, ThreeWorkersByPlacementComputeNoBlockTwice) {
  const ReplayResult result = Play({.workers = 3, .block_bytes = 512, .verify = true});
  EXPECT_EQ(result.hit_blocks, kBlocks - kDistinct);
}

TEST_F(ReplayTest, ThreeWorkersInTurnPullFromEachOther) {
  const ReplayResult result = Play({.workers = 3, .round_robin = true, .block_bytes = 512, .verify = true});
  EXPECT_EQ(result.hit_blocks, kBlocks - kDistinct);
  EXPECT_GT(result.hits[static_cast<size_t>(HitSource::kPeer)], 0u);
  EXPECT_EQ(result.requests_by_worker.at("worker-0"), 14u);
  EXPECT_EQ(result.requests_by_worker.at("worker-1"), 13u);
  EXPECT_EQ(result.requests_by_worker.at("worker-2"), 13u);
}

TEST_F(ReplayTest, LowerTiersKeepWhatTheDeviceCannot) {
  ReplayOptions options{.capacity = {20, std::nullopt, std::nullopt}, .block_bytes = 512, .verify = true};
  const uint64_t device_alone = Play(options).hit_blocks;
  EXPECT_LT(device_alone, kBlocks - kDistinct);

  options.capacity = {20, 20, std::nullopt};
  const uint64_t with_host = Play(options).hit_blocks;
  EXPECT_GT(with_host, device_alone);

  options.capacity = {20, 20, 200};
  const ReplayResult with_disk = Play(options);
  EXPECT_EQ(with_disk.hit_blocks, kBlocks - kDistinct);
  EXPECT_GT(with_disk.hits[static_cast<size_t>(HitSource::kHost)], 0u);
  EXPECT_GT(with_disk.hits[static_cast<size_t>(HitSource::kDisk)], 0u);
}

TEST_F(ReplayTest, ProgressIsToldOncePerRequest) {
  std::vector<size_t> seen;
  const std::vector<TraceRequest> trace = {{.hash_ids = {1, 2}}, {.hash_ids = {}}, {.hash_ids = {1, 3}}};
  const absl::StatusOr<ReplayResult> result = Replay(trace, {.progress = [&seen](size_t done, size_t all) {
                                                       EXPECT_EQ(all, 3u);
                                                       seen.push_back(done);
                                                     }});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(seen, testing::ElementsAre(1, 2, 3));
  EXPECT_EQ(result->hit_blocks, 1u);
}

TEST_F(ReplayTest, FaultyOptionsAreNamed) {
  const auto fault = [](const ReplayOptions& options) {
    const absl::Status status = Replay({{.hash_ids = {1}}}, options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(fault({.workers = 0}), HasSubstr("--workers"));
  EXPECT_THAT(fault({.workers = 65}), HasSubstr("--workers"));
  EXPECT_THAT(fault({.block_bytes = 0}), HasSubstr("--block-bytes"));
  EXPECT_THAT(fault({.block_bytes = uint64_t{1} << 25}), HasSubstr("--block-bytes"));
  EXPECT_THAT(fault({.capacity = {std::nullopt, 5, std::nullopt}}), HasSubstr("--capacity-blocks"));
}

// Hits of a least-recently-used cache of `capacity` blocks that drops leaves first: a request's blocks are touched tail
// first.
uint64_t LruHits(const std::vector<TraceRequest>& trace, size_t capacity) {
  std::list<uint64_t> order;  // most recently used first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> held;
  uint64_t hits = 0;
  for (const TraceRequest& request : trace) {
    const std::vector<uint64_t>& ids = request.hash_ids;
    for (size_t i = 0; i < ids.size() && held.contains(ids[i]); ++i) ++hits;
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
      if (const auto found = held.find(*id); found != held.end()) order.erase(found->second);
      held[*id] = order.insert(order.begin(), *id);
    }
    while (held.size() > capacity) {
      held.erase(order.back());
      order.pop_back();
    }
  }
  return hits;
}

// The first 1,000 requests of a published chat trace.
TEST_F(ReplayTest, APublishedTraceHitsAsOftenAsItMust) {
  const char* source = std::getenv("KVMESH_SOURCE_DIR");
  const std::string path =
      std::string(source == nullptr ? "." : source) + "/../shared/data/traces/conversation_trace.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  absl::StatusOr<std::vector<TraceRequest>> trace = ReadMooncakeTrace(path);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_GE(trace->size(), 1000u);
  trace->resize(1000);
  const auto hits = [&trace](uint64_t capacity) {
    const absl::StatusOr<ReplayResult> result =
        Replay(*trace, {.capacity = {capacity, std::nullopt, std::nullopt}, .block_bytes = 64});
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return uint64_t{0};
    EXPECT_EQ(result->blocks, 27305u);
    return result->hit_blocks;
  };
  EXPECT_EQ(hits(0), 5791u);
  for (const uint64_t capacity : {1000, 5000}) {
    EXPECT_EQ(hits(capacity), LruHits(*trace, capacity)) << "at a capacity of " << capacity;
  }
  EXPECT_EQ(LruHits(*trace, 1000), 1038u);
}

}  // namespace
}  // namespace kvmesh
