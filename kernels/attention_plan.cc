#include "kernels/attention_plan.h"

#include "kernels/attention_parts.h"
#include "kernels/check.h"
#include "kernels/variant.h"

namespace kvmesh {
namespace {

// Parts for each thread, so that threads that end early find more.
constexpr int kPartsPerThread = 4;

// What each field is called in a refusal.
std::string Differs(const char* name, int64_t have, int64_t want) {
  return std::string(name) + " is " + std::to_string(have) + ", the plan's is " + std::to_string(want);
}

std::string LayoutDiffers(const BlockLayout& have, const BlockLayout& want) {
  if (have.format != want.format) {
    return Differs("format", static_cast<int64_t>(have.format), static_cast<int64_t>(want.format));
  }
  if (have.layers != want.layers) return Differs("layers", have.layers, want.layers);
  if (have.kv_heads != want.kv_heads) return Differs("kv_heads", have.kv_heads, want.kv_heads);
  if (have.block_tokens != want.block_tokens) return Differs("block_tokens", have.block_tokens, want.block_tokens);
  if (have.head_dim != want.head_dim) return Differs("head_dim", have.head_dim, want.head_dim);
  return "the layout's strides are not the plan's";
}

// Floats of one span's states of some rows.
int64_t StateFloats(const AttentionRows& rows, const BlockLayout& layout) {
  return int64_t{rows.size()} * (layout.head_dim + 1);
}

}  // namespace

AttentionPlan::AttentionPlan(std::span<const AttentionSequence> sequences, const AttentionParams& params,
                             const KvPoolView& pool, const AttentionPlanOptions& options)
    : sequences_(sequences.begin(), sequences.end()),
      layout_(pool.layout),
      slots_(pool.slots),
      q_heads_(params.q_heads),
      window_(params.window),
      sinks_(!params.sinks.empty()) {
  CheckShape(params, layout_);
  CheckBlocks(sequences, params, pool);
  Require(options.threads > 0 && options.workspace_floats >= 0, "AttentionPlan: threads is not positive");
  const int32_t group = q_heads_ / layout_.kv_heads;
  const int64_t wanted = options.threads == 1 ? 1 : int64_t{options.threads} * kPartsPerThread;
  // Whole rows first, then their spans apart, then fewer kv heads at a time.
  int32_t heads = layout_.kv_heads;
  int64_t runs = 0, spans = 0;
  for (;; heads = (heads + 1) / 2) {
    runs = spans = 0;
    ForEachRows(sequences_, group, layout_.kv_heads, heads, [&](const AttentionRows& rows) {
      const KeyRange range = SpansOf(rows, group, window_);
      ++runs;
      spans += range.end - range.begin;
    });
    if (heads == 1 || spans >= wanted) break;
  }
  ForEachRows(sequences_, group, layout_.kv_heads, heads,
              [&](const AttentionRows& rows) { Add(rows, runs < wanted, options.workspace_floats); });
}

void AttentionPlan::Add(const AttentionRows& rows, bool cut, int64_t most_floats) {
  const KeyRange spans = SpansOf(rows, q_heads_ / layout_.kv_heads, window_);
  const int64_t floats = (spans.end - spans.begin) * StateFloats(rows, layout_);
  if (!cut || spans.end - spans.begin == 1 || workspace_floats_ + floats > most_floats) {
    parts_.push_back({rows});
    return;
  }
  for (int64_t span = spans.begin; span < spans.end; ++span) {
    parts_.push_back({rows, static_cast<int>(cuts_.size()), span});
  }
  cuts_.push_back({rows, spans, workspace_floats_});
  workspace_floats_ += floats;
}

std::string AttentionPlan::Refusal(const AttentionCall& call) const {
  if (call.params.q_heads != q_heads_) return Differs("q_heads", call.params.q_heads, q_heads_);
  if (call.params.window != window_) return Differs("window", call.params.window, window_);
  if (call.params.sinks.empty() == sinks_) return sinks_ ? "the plan has sinks" : "the plan has no sinks";
  if (call.pool.layout != layout_) return LayoutDiffers(call.pool.layout, layout_);
  if (call.pool.slots != slots_) return Differs("slots", call.pool.slots, slots_);
  return {};
}

void AttentionPlan::Check(const AttentionCall& call, std::span<float> workspace) const {
  CheckShape(call.params, layout_);
  CheckCall(sequences_, call);
  Require(static_cast<int64_t>(workspace.size()) >= workspace_floats_, "AttentionPlan: workspace too small");
}

RowStates AttentionPlan::StatesOf(const Cut& cut, int64_t span, std::span<float> workspace) const {
  float* out = workspace.data() + cut.at + (span - cut.spans.begin) * StateFloats(cut.rows, layout_);
  return {out, out + int64_t{cut.rows.size()} * layout_.head_dim};
}

std::string AttentionPlan::RunPart(int part, const AttentionCall& call, std::span<float> workspace) const {
  if (std::string refusal = Refusal(call); !refusal.empty()) return refusal;
  Check(call, workspace);
  Require(part >= 0 && part < parts(), "AttentionPlan: part out of range");
  const Part& run = parts_[static_cast<size_t>(part)];
  if (run.cut < 0) {
    AttendSpans(CurrentVariant(), call, run.rows);
  } else {
    AttendSpan(CurrentVariant(), call, run.rows, run.span,
               StatesOf(cuts_[static_cast<size_t>(run.cut)], run.span, workspace));
  }
  return {};
}

std::string AttentionPlan::Finish(const AttentionCall& call, std::span<float> workspace) const {
  if (std::string refusal = Refusal(call); !refusal.empty()) return refusal;
  Check(call, workspace);
  for (const Cut& cut : cuts_) {
    const RowStates total = StatesOf(cut, cut.spans.begin, workspace);
    for (int64_t span = cut.spans.begin + 1; span < cut.spans.end; ++span) {
      MergeSpan(cut.rows, layout_.head_dim, total, StatesOf(cut, span, workspace));
    }
    StoreRows(call, cut.rows, total);
  }
  return {};
}

}  // namespace kvmesh
