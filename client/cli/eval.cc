#include "client/cli/eval.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/kv_format.h"
#include "kvstore/pool/block_pool.h"

namespace kvmesh {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One sequence over pools of one format, a pool for each layer group. A pool with a window is a ring of blocks behind
// those of the sinks: it holds what a pass sees and writes, however long the sequence is.
class EvalSequence {
 public:
  // For sequences of at most `positions` tokens in passes of at most `pass_tokens`.
  static absl::StatusOr<std::unique_ptr<EvalSequence>> Create(const LlamaModel& model, KvFormat format,
                                                              const EvalOptions& options, int64_t positions,
                                                              int64_t pass_tokens) {
    std::unique_ptr<EvalSequence> out(new EvalSequence(model, options));
    const int64_t blocks = DivideUp(positions, options.block_tokens);
    for (size_t group = 0; group < model.config().groups.size(); ++group) {
      const int64_t window = options.policy.streams() ? options.policy.window : model.config().groups[group].window;
      const int64_t sinks = std::min(blocks, DivideUp(options.policy.sinks, options.block_tokens));
      int64_t ring = blocks - sinks;
      if (window != 0) ring = std::min(ring, (window + pass_tokens) / options.block_tokens + 2);
      std::vector<uint32_t> table;
      for (int64_t i = 0; i < blocks; ++i) {
        table.push_back(static_cast<uint32_t>(i < sinks ? i : sinks + (i - sinks) % ring));
      }
      absl::StatusOr<std::unique_ptr<MemoryPool>> pool = MemoryPool::Create(
          model.config().CacheLayout(format, options.block_tokens, group), static_cast<uint32_t>(sinks + ring));
      if (!pool.ok()) return pool.status();
      out->views_.push_back((*pool)->view());
      out->pools_.push_back(*std::move(pool));
      out->tables_.push_back(std::move(table));
    }
    out->slots_.resize(out->views_.size());
    return out;
  }

  // The next tokens come at position 0.
  void Restart() { length_ = 0; }

  // The logits of all `tokens`, which follow those so far.
  absl::StatusOr<Logits> Next(std::span<const uint32_t> tokens) {
    ForwardSequence sequence = {tokens, length_, {}, LogitsWanted::kAll, policy_};
    const int64_t end = length_ + static_cast<int64_t>(tokens.size());
    for (size_t group = 0; group < views_.size(); ++group) {
      slots_[group].clear();
      for (int64_t p = length_; p < end; ++p) {
        slots_[group].push_back(int64_t{tables_[group][static_cast<size_t>(p / block_tokens_)]} * block_tokens_ +
                                p % block_tokens_);
      }
      sequence.groups.push_back({slots_[group], tables_[group]});
    }
    length_ = end;
    return model_.Forward({&sequence, 1}, views_);
  }

 private:
  EvalSequence(const LlamaModel& model, const EvalOptions& options)
      : model_(model), policy_(options.policy), block_tokens_(options.block_tokens) {}

  const LlamaModel& model_;
  const StreamingPolicy policy_;
  const int64_t block_tokens_;
  // By group.
  std::vector<std::unique_ptr<MemoryPool>> pools_;
  std::vector<KvPoolView> views_;
  std::vector<std::vector<uint32_t>> tables_;
  std::vector<std::vector<int64_t>> slots_;
  int64_t length_ = 0;
};

// What a window of one text has come to.
struct Sums {
  double nll = 0;
  double nll_fp32 = 0;
  double max_abs_logit_diff = 0;
  uint64_t predicted = 0;
};

// Adds one pass. `next`: the token after each row's; the last row may have none.
absl::Status Add(const Logits& logits, const Logits& fp32, std::span<const uint32_t> next, Sums& sums) {
  for (int64_t row = 0; row < logits.rows; ++row) {
    const std::span<const float> a = logits.row(row), b = fp32.row(row);
    for (size_t i = 0; i < a.size(); ++i) {
      const double difference = std::abs(double{a[i]} - double{b[i]});
      if (!std::isfinite(difference)) return absl::InternalError("a logit is not finite");
      sums.max_abs_logit_diff = std::max(sums.max_abs_logit_diff, difference);
    }
    if (static_cast<size_t>(row) == next.size()) break;
    sums.nll += NegativeLogLikelihood(a, next[static_cast<size_t>(row)]);
    sums.nll_fp32 += NegativeLogLikelihood(b, next[static_cast<size_t>(row)]);
    ++sums.predicted;
  }
  return absl::OkStatus();
}

absl::Status Check(const LlamaConfig& config, std::span<const uint32_t> tokens, const EvalOptions& options) {
  if (KvFormatBits(options.format) == 0) return absl::InvalidArgumentError("--kv-format: no format");
  if (tokens.size() < 2) return absl::InvalidArgumentError("--tokens-file: fewer than 2 tokens");
  for (const uint32_t token : tokens) {
    if (token < static_cast<uint32_t>(config.vocab_size)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--tokens-file: id ", token, " is outside the vocabulary of ", config.vocab_size));
  }
  const absl::Status policy = CheckStreamingPolicy(options.policy, config);
  if (!policy.ok()) return absl::Status(policy.code(), absl::StrCat("--", policy.message()));
  const int64_t positions = options.policy.streams() ? kMaxPositions : config.max_positions;
  if (options.window_tokens != 0 && (options.window_tokens < 2 || options.window_tokens > positions)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--window-tokens: ", options.window_tokens, ", must be 2 to ", positions));
  }
  return absl::OkStatus();
}

}  // namespace

double NegativeLogLikelihood(std::span<const float> logits, uint32_t token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum) - logits[token];
}

absl::StatusOr<EvalResult> Evaluate(const LlamaModel& model, std::span<const uint32_t> tokens,
                                    const EvalOptions& options) {
  const LlamaConfig& config = model.config();
  KVMESH_RETURN_IF_ERROR(Check(config, tokens, options));
  const auto count = static_cast<int64_t>(tokens.size());
  int64_t window = options.policy.streams() ? count : config.max_positions;
  if (options.window_tokens != 0) window = options.window_tokens;
  window = std::min(window, count);
  const int64_t pass = std::clamp<int64_t>(options.pass_tokens, 1, kMaxForwardLogits / config.vocab_size);
  const auto stored = EvalSequence::Create(model, options.format, options, window, pass);
  if (!stored.ok()) return stored.status();
  const auto fp32 = EvalSequence::Create(model, KvFormat::kF32, options, window, pass);
  if (!fp32.ok()) return fp32.status();

  Sums sums;
  for (int64_t begin = 0; begin < count; begin += window) {
    const int64_t window_end = std::min(count, begin + window);
    (*stored)->Restart();
    (*fp32)->Restart();
    for (int64_t at = begin; at < window_end; at += pass) {
      const int64_t end = std::min(window_end, at + pass);
      const auto part = tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(end - at));
      const absl::StatusOr<Logits> logits = (*stored)->Next(part);
      if (!logits.ok()) return logits.status();
      const absl::StatusOr<Logits> exact = (*fp32)->Next(part);
      if (!exact.ok()) return exact.status();
      const int64_t next_end = std::min(window_end, end + 1);
      const auto next = tokens.subspan(static_cast<size_t>(at + 1), static_cast<size_t>(next_end - at - 1));
      KVMESH_RETURN_IF_ERROR(Add(*logits, *exact, next, sums));
      if (options.progress) options.progress(static_cast<size_t>(end), tokens.size());
    }
  }
  const auto predicted = static_cast<double>(sums.predicted);
  return EvalResult{.tokens = tokens.size(),
                    .predicted = sums.predicted,
                    .mean_nll = sums.nll / predicted,
                    .mean_nll_fp32 = sums.nll_fp32 / predicted,
                    .max_abs_logit_diff = sums.max_abs_logit_diff};
}

}  // namespace kvmesh
