// A production chat trace over four workers: load is shared fairly and no prefix is computed twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <unordered_set>
#include <vector>

#include "coordinator/placement/placer.h"
#include "coordinator/prefix_index/literal_prefix_index.h"
#include "kvstore/block/key_chain.h"

namespace kvmesh {
namespace {

constexpr size_t kWorkers = 4;
constexpr uint32_t kBlockTokens = 512;
// The whole trace; its README says how many leading blocks an unlimited cache finds.
constexpr size_t kRequests = 12031;
constexpr uint64_t kUnlimitedHits = 105710;

struct Request {
  int64_t timestamp_ms = 0;
  uint64_t input_tokens = 0;
  std::vector<uint32_t> blocks;
};

int64_t NumberAfter(const std::string& line, const std::string& name) {
  return std::strtoll(line.c_str() + line.find(name) + name.size(), nullptr, 10);
}

std::vector<Request> ReadTrace(const std::string& path, size_t limit) {
  std::vector<Request> out;
  std::ifstream file(path);
  std::string line;
  while (out.size() < limit && std::getline(file, line)) {
    Request request;
    request.timestamp_ms = NumberAfter(line, "\"timestamp\": ");
    request.input_tokens = static_cast<uint64_t>(NumberAfter(line, "\"input_length\": "));
    const char* at = std::strchr(line.c_str(), '[') + 1;
    while (*at != ']') {
      char* end = nullptr;
      request.blocks.push_back(static_cast<uint32_t>(std::strtoul(at, &end, 10)));
      at = *end == ',' ? end + 1 : end;
    }
    out.push_back(request);
  }
  return out;
}

class CountingRandom : public RandomSource {
 public:
  void Fill(void* out, size_t size) override {
    ++count_;
    std::memset(out, 0, size);
    std::memcpy(out, &count_, std::min(size, sizeof(count_)));
  }

 private:
  uint64_t count_ = 0;
};

struct Regime {
  const char* name;
  uint64_t block_bytes;
  bool complete;  // each request ends before the next is routed
  double prefill_tokens_per_second;
};

class TraceReplayTest : public testing::TestWithParam<Regime> {};

TEST_P(TraceReplayTest, EveryWorkerServesItsShareAtTheUnlimitedHitRate) {
  const char* source = std::getenv("KVMESH_SOURCE_DIR");
  const std::string root_dir = source == nullptr ? "." : source;
  const std::vector<Request> trace = ReadTrace(root_dir + "/../shared/data/traces/conversation_trace.jsonl", kRequests);
  if (trace.empty()) GTEST_SKIP() << "the trace is not here";

  const Regime& regime = GetParam();
  ManualClock clock(absl::UnixEpoch());
  CountingRandom random;
  LiteralPrefixIndex index{PrefixIndexOptions{}};
  const PlacementOptions options;
  Placer placer(options, clock, random);
  const PlacementRates rates =
      WithDefaults({.prefill_tokens_per_second = regime.prefill_tokens_per_second}, options.default_rates);
  std::vector<WorkerSlot> workers;
  for (size_t i = 0; i < kWorkers; ++i) workers.push_back(*index.AddWorker());

  RootKey root;
  root.bytes.fill(1);
  std::unordered_set<uint32_t> seen;
  std::array<size_t, kWorkers> served{};
  uint64_t blocks = 0, local = 0, pulled = 0, unlimited = 0;
  for (const Request& request : trace) {
    clock.AdvanceTo(absl::UnixEpoch() + absl::Milliseconds(request.timestamp_ms));
    const std::vector<BlockKey> keys = ComputeBlockKeys(RootAsParent(root), request.blocks, 1);
    std::vector<PrefixMatch> matches;
    index.LookupAll({.root = root, .keys = keys}, matches);
    std::vector<Candidate> candidates;
    for (const WorkerSlot worker : workers) {
      candidates.push_back(
          {.slot = worker, .rates = rates, .block_tokens = kBlockTokens, .block_bytes = regime.block_bytes});
      for (const PrefixMatch& match : matches) {
        if (match.worker == worker) candidates.back().blocks = match.blocks;
      }
    }
    Placement placement;
    ASSERT_TRUE(placer.Place({.keys = keys, .prompt_tokens = 0}, candidates, placement).ok());
    ++served[placement.chosen];
    blocks += keys.size();
    const uint32_t at_hand = candidates[placement.chosen].local();
    local += at_hand;
    for (const PullSpan& span : placement.sources) pulled += span.block_count;
    bool prefix = true;
    for (const uint32_t block : request.blocks) {
      prefix &= seen.contains(block);
      unlimited += prefix;
      seen.insert(block);
    }
    const WorkerSlot chosen = workers[placement.chosen];
    ASSERT_TRUE(
        index.Stored(chosen, IndexSet::kDevice, {.root = root, .parent = RootAsParent(root), .keys = keys}).ok());
    if (regime.complete) {
      ASSERT_TRUE(placer.Complete(placement.id).ok());
    }
  }
  std::printf("%s: %zu requests, served", regime.name, trace.size());
  for (const size_t count : served) {
    const double share = static_cast<double>(count) / static_cast<double>(trace.size());
    std::printf(" %.3f", share);
    EXPECT_GE(share, 0.15);
    EXPECT_LE(share, 0.35);
  }
  std::printf(", hits local %.4f peer %.4f\n", static_cast<double>(local) / static_cast<double>(blocks),
              static_cast<double>(pulled) / static_cast<double>(blocks));
  EXPECT_EQ(unlimited, kUnlimitedHits);
  EXPECT_EQ(local + pulled, unlimited);
}

INSTANTIATE_TEST_SUITE_P(Regimes, TraceReplayTest,
                         testing::Values(Regime{"InFlightLoadDrainsByTheClock", 64 << 20, false, 8000},
                                         Regime{"EachCompletesBeforeTheNext", 64 << 20, true, 8000},
                                         Regime{"TinyBlocks", 4096, true, 8000},
                                         Regime{"TinyBlocksNeverCompleted", 4096, false, 8000},
                                         Regime{"SlowWorkersOverloaded", 16 << 20, false, 1000},
                                         Regime{"FastWorkersIdle", 1 << 20, true, 100000}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvmesh
