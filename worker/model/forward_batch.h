// What goes into one forward pass and what comes out.
#ifndef KVMESH_WORKER_MODEL_FORWARD_BATCH_H_
#define KVMESH_WORKER_MODEL_FORWARD_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_pool_view.h"
#include "kvstore/base/status.h"
#include "worker/model/llama_config.h"

namespace kvmesh {

// Limits of one pass, which bound its memory.
inline constexpr int64_t kMaxForwardTokens = 65536;
inline constexpr int64_t kMaxForwardLogits = int64_t{1} << 28;  // rows * vocab_size

enum class LogitsWanted { kNone, kLast, kAll };

// One sequence's share of a pass: tokens at positions first_position, first_position + 1, ... The spans must stay valid
// during the call.
struct ForwardSequence {
  // Ids below vocab_size; not empty.
  std::span<const uint32_t> tokens;
  int64_t first_position = 0;
  // [tokens]: the slot that a token's K/V are written to, block_table[position / block_tokens] * block_tokens +
  // position % block_tokens; or -1: nothing is written and attention reads what is in the pool at that position already
  // (the last token of a prompt that is cached whole).
  std::span<const int64_t> slot_mapping;
  // Block ids in order, covering first_position + tokens positions. Positions before first_position are in the pool.
  std::span<const uint32_t> block_table;
  LogitsWanted logits = LogitsWanted::kLast;
};

// fp32 [rows, vocab_size]: the wanted rows, sequences one after the other.
struct Logits {
  int64_t rows = 0;
  int64_t vocab_size = 0;
  std::vector<float> values;

  std::span<const float> row(int64_t i) const {
    return std::span(values).subspan(static_cast<size_t>(i * vocab_size), static_cast<size_t>(vocab_size));
  }
};

// Rows of the answer to `batch`.
int64_t WantedRows(std::span<const ForwardSequence> batch);

// INVALID_ARGUMENT naming sequence and field: a broken rule above, a position that reaches max_positions, a block or
// slot outside the pool, or a pool whose layout is not of this model. RESOURCE_EXHAUSTED: a limit above.
absl::Status CheckForwardBatch(std::span<const ForwardSequence> batch, const LlamaConfig& config,
                               const KvPoolView& pool);

}  // namespace kvmesh

#endif  // KVMESH_WORKER_MODEL_FORWARD_BATCH_H_
