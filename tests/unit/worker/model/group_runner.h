// A sequence over one bounded pool for each layer group: blocks that no later position can see are dropped, overwritten
// with NaN and used again.
#ifndef KVMESH_TESTS_UNIT_WORKER_MODEL_GROUP_RUNNER_H_
#define KVMESH_TESTS_UNIT_WORKER_MODEL_GROUP_RUNNER_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/worker/model/local_runner.h"

namespace kvmesh::testing {

class GroupRunner {
 public:
  GroupRunner(const LlamaModel& model, KvFormat format, int32_t block_tokens, int64_t max_tokens, int64_t max_pass,
              const StreamingPolicy& policy = {})
      : model_(model), policy_(policy), block_tokens_(block_tokens) {
    for (size_t group = 0; group < model.config().groups.size(); ++group) {
      // A window's blocks stand across two ends, and the new tokens' too.
      const int64_t window = WindowOf(group);
      const int64_t held = window == 0 ? max_tokens : std::min(max_tokens, window + max_pass + policy.sinks);
      const int64_t blocks = held / block_tokens + 4;
      pools_.push_back(std::make_unique<PlainPool>(model.config().CacheLayout(format, block_tokens, group), blocks));
      views_.push_back(pools_.back()->view());
      tables_.emplace_back();
      free_.emplace_back();
      for (int64_t block = blocks; block > 0; --block) free_.back().push_back(static_cast<uint32_t>(block - 1));
    }
  }

  // The logits of all `tokens`, which follow those so far.
  std::vector<float> Next(std::span<const uint32_t> tokens) {
    ForwardSequence sequence = {tokens, length_, {}, LogitsWanted::kAll, policy_};
    const int64_t end = length_ + static_cast<int64_t>(tokens.size());
    std::vector<std::vector<int64_t>> slots(views_.size());
    for (size_t group = 0; group < views_.size(); ++group) {
      Drop(group);
      std::vector<uint32_t>& table = tables_[group];
      while (static_cast<int64_t>(table.size()) * block_tokens_ < end) {
        EXPECT_FALSE(free_[group].empty()) << "group " << group << " holds more than its window";
        if (free_[group].empty()) return {};
        table.push_back(free_[group].back());
        free_[group].pop_back();
      }
      for (int64_t p = length_; p < end; ++p) {
        slots[group].push_back(int64_t{table[static_cast<size_t>(p / block_tokens_)]} * block_tokens_ +
                               p % block_tokens_);
      }
      sequence.groups.push_back({slots[group], table});
    }
    length_ = end;
    absl::StatusOr<Logits> logits = model_.Forward({&sequence, 1}, views_);
    EXPECT_TRUE(logits.ok()) << logits.status();
    return logits.ok() ? logits->values : std::vector<float>();
  }

 private:
  int64_t WindowOf(size_t group) const {
    return policy_.window != 0 ? policy_.window : model_.config().groups[group].window;
  }

  void Drop(size_t group) {
    const int64_t first = FirstVisible(length_, WindowOf(group)) / block_tokens_;
    const int64_t sinks = (policy_.sinks + block_tokens_ - 1) / block_tokens_;
    for (int64_t i = sinks; i < first; ++i) {
      uint32_t& block = tables_[group][static_cast<size_t>(i)];
      if (block == kNoBlock) continue;
      const KvPoolView& view = views_[group];
      std::memset(view.base + block * view.slot_stride, 0xee, static_cast<size_t>(view.slot_stride));
      free_[group].push_back(block);
      block = kNoBlock;
    }
  }

  const LlamaModel& model_;
  const StreamingPolicy policy_;
  const int64_t block_tokens_;
  std::vector<std::unique_ptr<PlainPool>> pools_;
  std::vector<KvPoolView> views_;
  std::vector<std::vector<uint32_t>> tables_;
  std::vector<std::vector<uint32_t>> free_;
  int64_t length_ = 0;
};

}  // namespace kvmesh::testing

#endif  // KVMESH_TESTS_UNIT_WORKER_MODEL_GROUP_RUNNER_H_
