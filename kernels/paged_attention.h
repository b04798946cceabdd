// Attention of new queries over a paged K/V prefix: decode (one query), chunked prefill and verify (several).
#ifndef KVMESH_KERNELS_PAGED_ATTENTION_H_
#define KVMESH_KERNELS_PAGED_ATTENTION_H_

#include <cstdint>
#include <span>

#include "kernels/kv_pool_view.h"

namespace kvmesh {

// Stands in block tables where no query looks any more.
inline constexpr uint32_t kNoBlock = 0xffffffff;

// One sequence's share of a call. Query i of a sequence stands at position `first_position + i` and attends causally to
// keys 0 .. first_position + i, limited to the last `window` of them (its own included) when window > 0.
// The K/V of all those positions must be in the pool (append runs before attention).
struct AttentionSequence {
  std::span<const uint32_t> block_table;  // block ids in order, covering first_position + queries tokens
  int64_t first_position = 0;
  int64_t queries = 0;
};

struct AttentionParams {
  int32_t q_heads = 0;  // a multiple of the layout's kv_heads; head h reads kv head h / (q_heads / kv_heads)
  float scale = 0;      // multiplies q.k, usually 1/sqrt(head_dim)
  int64_t window = 0;   // keys visible to a query, its own position included; 0: all
  float soft_cap = 0;   // s -> cap * tanh(s / cap); 0: none
  // Empty, or [q_heads]: a learned logit of each head that joins the denominator of its softmax, without a value and as
  // it is: neither scaled nor capped. Source: gpt-oss, arXiv:2508.10925.
  std::span<const float> sinks = {};
};

// Keys of a span, the unit in which the keys of one query can be given to several threads.
inline constexpr int64_t kSpanTokens = 2048;

// query: fp32 [sum of queries, q_heads, head_dim], sequences one after the other. out: same shape, fp32.
// lse: empty, or [sum of queries, q_heads]: natural log of the sum of exp of the scaled scores, the sink's included: of
// states of one query that are to be merged, exactly one is computed with sinks.
// A query without visible keys gives out 0 and lse -inf, or the sink where there is one. fp32 accumulation.
// Row-invariant: a query's result depends on its position and its keys only, never on the chunking, the batch or the
// thread that computes it. Keys are attended to in spans of kSpanTokens positions, from multiples of it on, whose
// states are merged in order: kernels/attention_plan.h gives the spans to threads, for the same bits. REQUIRES: sizes
// agree, block tables cover every visible position, head_dim <= 256. Thread safe.
void PagedAttention(std::span<const float> query, std::span<const AttentionSequence> sequences, int32_t layer,
                    const AttentionParams& params, const KvPoolView& pool, std::span<float> out,
                    std::span<float> lse = {});

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_PAGED_ATTENTION_H_
