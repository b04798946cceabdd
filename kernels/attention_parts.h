// The parts of an attention call and how their results become one: what PagedAttention does in turn and AttentionPlan
// gives to threads. The same parts in the same order of merging, hence the same bits.
#ifndef KVMESH_KERNELS_ATTENTION_PARTS_H_
#define KVMESH_KERNELS_ATTENTION_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/attention_rows.h"
#include "kernels/variant.h"

namespace kvmesh {

// Aborts unless what PagedAttention requires of these holds. CheckCall counts the rows of `sequences`.
void CheckShape(const AttentionParams& params, const BlockLayout& layout);
void CheckBlocks(std::span<const AttentionSequence> sequences, const AttentionParams& params, const KvPoolView& pool);
void CheckCall(std::span<const AttentionSequence> sequences, const AttentionCall& call);

// Calls visit(rows) for runs of rows that cover a call, at most `most_heads` kv heads each. All kv heads of a decode
// step make one run: a block's K and V of all heads lie side by side, and are read fastest in that order.
template <class Visit>
void ForEachRows(std::span<const AttentionSequence> sequences, int32_t group, int32_t kv_heads, int32_t most_heads,
                 Visit visit) {
  int64_t first_query = 0;
  for (const AttentionSequence& sequence : sequences) {
    const int64_t total = sequence.queries * group;
    for (int64_t first = 0; first < total; first += kMostRows) {
      const int count = static_cast<int>(std::min<int64_t>(kMostRows, total - first));
      const int32_t heads = std::clamp(kMostRows / count, 1, most_heads);
      for (int32_t head = 0; head < kv_heads; head += heads) {
        visit(AttentionRows{sequence, first_query, head, std::min(heads, kv_heads - head), first, count});
      }
    }
    first_query += sequence.queries;
  }
}

// The spans [begin, end), in units of kSpanTokens, that hold what the rows see; one span for rows that see nothing.
KeyRange SpansOf(const AttentionRows& rows, int32_t group, int64_t window);

// Attention of the rows over one span, by `variant`.
void AttendSpan(KernelVariant variant, const AttentionCall& call, const AttentionRows& rows, int64_t span,
                RowStates out);

// Merges the next span's states into those of the spans before it.
void MergeSpan(const AttentionRows& rows, int32_t head_dim, RowStates total, RowStates next);

// Lets the sinks join and writes the rows to where the call wants them.
void StoreRows(const AttentionCall& call, const AttentionRows& rows, RowStates total);

// All of the above for some rows.
void AttendSpans(KernelVariant variant, const AttentionCall& call, const AttentionRows& rows);

// PagedAttention by a given variant, which the CPU can run.
void AttendWith(KernelVariant variant, std::span<const AttentionSequence> sequences, const AttentionCall& call);

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_ATTENTION_PARTS_H_
