// A model on a plain pool in one process, for tests: blocks 0, 1, 2, ... or any other table, no cache, no eviction.
#ifndef KVMESH_TESTS_UNIT_WORKER_MODEL_LOCAL_RUNNER_H_
#define KVMESH_TESTS_UNIT_WORKER_MODEL_LOCAL_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/element.h"
#include "worker/model/greedy.h"
#include "worker/model/llama_model.h"

namespace kvmesh::testing {

// Where the model folders are; empty where they are missing.
inline std::string ModelDir(const std::string& below_source_dir) {
  const char* source = std::getenv("KVMESH_SOURCE_DIR");
  if (source == nullptr) return "";
  const std::string dir = std::string(source) + "/" + below_source_dir;
  return std::filesystem::exists(dir + "/model.safetensors") ? dir : "";
}
inline std::string StoriesDir() { return ModelDir("../shared/data/stories260k"); }
inline std::string ShippedDir() { return ModelDir("deploy/model"); }

// Memory for `blocks` blocks, all bytes 0xee (NaN in every format) until written.
class PlainPool {
 public:
  PlainPool(const BlockLayout& layout, int64_t blocks)
      : bytes_(static_cast<size_t>(layout.block_bytes * blocks), std::byte{0xee}) {
    view_ = {bytes_.data(), layout.block_bytes, blocks, layout};
  }
  PlainPool(const PlainPool&) = delete;
  PlainPool& operator=(const PlainPool&) = delete;

  const KvPoolView& view() const { return view_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  // Element `index` of K (kv = 0) or V (kv = 1) at `position` of a sequence on blocks 0, 1, 2, ...
  float Element(int64_t layer, int64_t kv, int64_t head, int64_t position, int64_t index) const {
    const int64_t block_tokens = view_.layout.block_tokens;
    return LoadElement(view_.At(position / block_tokens, layer, kv, head, position % block_tokens), index,
                       view_.layout.format);
  }

 private:
  std::vector<std::byte> bytes_;
  KvPoolView view_;
};

// One sequence over a block table: appends tokens in passes, keeps what a pass needs.
class LocalSequence {
 public:
  LocalSequence(const KvPoolView& pool, std::vector<uint32_t> block_table)
      : pool_(pool), block_table_(std::move(block_table)) {}
  // Blocks first, first + 1, ... for `tokens` tokens.
  LocalSequence(const KvPoolView& pool, uint32_t first, int64_t tokens) : LocalSequence(pool, {}) {
    block_table_.resize(static_cast<size_t>((tokens + pool.layout.block_tokens - 1) / pool.layout.block_tokens));
    std::iota(block_table_.begin(), block_table_.end(), first);
  }

  // The next pass over `tokens`, which follow the tokens so far.
  ForwardSequence Next(std::span<const uint32_t> tokens, LogitsWanted logits = LogitsWanted::kLast) {
    slots_.clear();
    for (size_t i = 0; i < tokens.size(); ++i) slots_.push_back(Slot(length_ + static_cast<int64_t>(i)));
    ForwardSequence out = {tokens, length_, {{slots_, block_table_}}, logits, {}};
    length_ += static_cast<int64_t>(tokens.size());
    return out;
  }
  // Goes on from `length` tokens, whose K/V are in the pool.
  void ResumeAt(int64_t length) { length_ = length; }

  int64_t Slot(int64_t position) const {
    const int64_t block_tokens = pool_.layout.block_tokens;
    return int64_t{block_table_[static_cast<size_t>(position / block_tokens)]} * block_tokens + position % block_tokens;
  }
  const std::vector<uint32_t>& block_table() const { return block_table_; }

 private:
  const KvPoolView& pool_;
  std::vector<uint32_t> block_table_;
  std::vector<int64_t> slots_;
  int64_t length_ = 0;
};

// Forward of one sequence; fails the test on an error.
inline Logits MustForward(const LlamaModel& model, const KvPoolView& pool, std::span<const ForwardSequence> batch) {
  absl::StatusOr<Logits> out = model.Forward(batch, {&pool, 1});
  EXPECT_TRUE(out.ok()) << out.status();
  return out.ok() ? *std::move(out) : Logits{};
}
inline Logits MustForward(const LlamaModel& model, const KvPoolView& pool, const ForwardSequence& sequence) {
  return MustForward(model, pool, std::span(&sequence, 1));
}

// `prompt`, then `count` greedy tokens. The pool takes the sequence on blocks 0, 1, 2, ...
inline std::vector<uint32_t> GenerateGreedy(const LlamaModel& model, const PlainPool& pool,
                                            std::vector<uint32_t> prompt, size_t count) {
  LocalSequence sequence(pool.view(), 0, static_cast<int64_t>(prompt.size() + count));
  std::vector<uint32_t> out = prompt;
  std::vector<uint32_t> next = std::move(prompt);
  for (size_t i = 0; i < count; ++i) {
    const Logits logits = MustForward(model, pool.view(), sequence.Next(next));
    if (logits.rows != 1) return out;
    next = {GreedyToken(logits.row(0))};
    out.push_back(next[0]);
  }
  return out;
}

}  // namespace kvmesh::testing

#endif  // KVMESH_TESTS_UNIT_WORKER_MODEL_LOCAL_RUNNER_H_
