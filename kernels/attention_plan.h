// Attention of one step cut into parts that threads run in any order, with the bits of PagedAttention.
#ifndef KVMESH_KERNELS_ATTENTION_PLAN_H_
#define KVMESH_KERNELS_ATTENTION_PLAN_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention_rows.h"

namespace kvmesh {

struct AttentionPlanOptions {
  int threads = 1;                              // that will run the parts
  int64_t workspace_floats = int64_t{4} << 20;  // the most that the plan may ask for; 16 MiB
};

// Made once per step from the sequences, and run for each layer:
//
//   const AttentionPlan plan(sequences, params, pool, {.threads = 8});
//   std::vector<float> workspace(plan.workspace_floats());
//   for each layer: every part in [0, parts()) once, by any thread, in any order: plan.RunPart(part, call, workspace);
//                   when all have returned: plan.Finish(call, workspace);
//
// Where there are fewer runs of rows than the threads want (decode of long sequences), their spans of kSpanTokens keys
// become parts of their own, whose states lie in the workspace until Finish merges them in the order that
// PagedAttention merges them in. The cut depends on lengths, options and shapes only, and the result on none of the
// options. Immutable once made: RunPart of different parts may run at the same time. The tables that the sequences
// point at are not copied, and must outlive the plan's use.
class AttentionPlan {
 public:
  // REQUIRES: what PagedAttention requires of these arguments; options positive. The layout of `pool`, and of `params`
  // q_heads, window and whether there are sinks, are what the plan is for. Scale, soft cap and the sinks' values may
  // differ from run to run, as they do from layer to layer.
  AttentionPlan(std::span<const AttentionSequence> sequences, const AttentionParams& params, const KvPoolView& pool,
                const AttentionPlanOptions& options);

  int parts() const { return static_cast<int>(parts_.size()); }
  // At most options.workspace_floats: what does not fit is not cut.
  int64_t workspace_floats() const { return workspace_floats_; }

  // Empty, or what the plan was made for and `call` has otherwise, e.g. "window is 64, the plan's is 128".
  std::string Refusal(const AttentionCall& call) const;

  // Both return Refusal(call), and do nothing unless it is empty. REQUIRES: `part` in range, workspace of at least
  // workspace_floats(), the same for all parts; sizes of `call` as PagedAttention has them.
  [[nodiscard]] std::string RunPart(int part, const AttentionCall& call, std::span<float> workspace) const;
  [[nodiscard]] std::string Finish(const AttentionCall& call, std::span<float> workspace) const;

 private:
  // Rows whose spans are apart: states of spans.begin, spans.begin + 1.. from `at` in the workspace.
  struct Cut {
    AttentionRows rows;
    KeyRange spans;
    int64_t at = 0;
  };
  // All spans of `rows`, or, with a cut, one of them.
  struct Part {
    AttentionRows rows;
    int cut = -1;
    int64_t span = 0;
  };

  void Add(const AttentionRows& rows, bool cut, int64_t most_floats);
  RowStates StatesOf(const Cut& cut, int64_t span, std::span<float> workspace) const;
  void Check(const AttentionCall& call, std::span<float> workspace) const;

  const std::vector<AttentionSequence> sequences_;
  const BlockLayout layout_;
  const int64_t slots_;
  const int32_t q_heads_;
  const int64_t window_;
  const bool sinks_;
  std::vector<Part> parts_;
  std::vector<Cut> cuts_;
  int64_t workspace_floats_ = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_ATTENTION_PLAN_H_
