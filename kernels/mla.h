// Multi-head latent attention (MLA): append and attention over pools of CanonicalMlaLayout, whose rows are a compressed
// latent, from which all heads' keys and values are projected, and a rotated key that all heads share.
// Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.
#ifndef KVMESH_KERNELS_MLA_H_
#define KVMESH_KERNELS_MLA_H_

#include <cstdint>
#include <span>

#include "kernels/kv_pool_view.h"
#include "kernels/paged_attention.h"

namespace kvmesh {

// Append: writes rows (latent, rope key) of one layer. latent: fp32 [tokens, latent_dim], normalized as the model has
// it; rope_key: fp32 [tokens, rope_dim], already rotated; both dense. slot_mapping: [tokens]; slot s writes token
// s % block_tokens of block s / block_tokens, and -1 skips the token. Each row is converted
// to the pool's format as QuantizeRow has it.
// REQUIRES: an MLA layout; sizes agree; slots inside the pool. Bit-identical for any split of the
// tokens into calls. Thread safe for disjoint slots.
void ConcatAndCacheMla(std::span<const float> latent, std::span<const float> rope_key,
                       std::span<const int64_t> slot_mapping, int32_t layer, const KvPoolView& pool);

struct MlaParams {
  int32_t q_heads = 0;
  float scale = 0;  // multiplies q.k, usually 1/sqrt(dimension of a head's unabsorbed query, its rope part included)
};

// Attention in the weight-absorbed form: with keys W_UK c and values W_UV c of latents c, a query's content part goes
// in as W_UK^T q, and its output comes out as the weighted sum of latents, which W_UV then turns into the head's
// output. query: fp32 [sum of queries, q_heads, latent_dim + rope_dim], sequences one after the other; scores are over
// whole rows. out: fp32 [sum of queries, q_heads, latent_dim]. lse: empty, or [sum of queries, q_heads]: natural log of
// the sum of exp of the scaled scores. Query i of a sequence attends causally to the rows 0 .. first_position + i. A
// query without visible rows gives out 0 and lse -inf. fp32 accumulation. Row-invariant as PagedAttention is: a query's
// result depends on its position and the rows only. REQUIRES: an MLA layout; sizes agree; block
// tables cover every visible position; latent_dim + rope_dim a multiple of 8, at most 640. Thread safe.
void MlaPagedDecode(std::span<const float> query, std::span<const AttentionSequence> sequences, int32_t layer,
                    const MlaParams& params, const KvPoolView& pool, std::span<float> out, std::span<float> lse = {});

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_MLA_H_
