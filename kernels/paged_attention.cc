#include "kernels/paged_attention.h"

#include "kernels/attention_parts.h"
#include "kernels/variant.h"

namespace kvmesh {

void PagedAttention(std::span<const float> query, std::span<const AttentionSequence> sequences, int32_t layer,
                    const AttentionParams& params, const KvPoolView& pool, std::span<float> out, std::span<float> lse) {
  const AttentionCall call = {query, layer, params, pool, out, lse};
  CheckShape(params, pool.layout);
  CheckBlocks(sequences, params, pool);
  CheckCall(sequences, call);
  AttendWith(CurrentVariant(), sequences, call);
}

}  // namespace kvmesh
