// What goes into one forward pass and what comes out.
#ifndef KVMESH_WORKER_MODEL_FORWARD_BATCH_H_
#define KVMESH_WORKER_MODEL_FORWARD_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_pool_view.h"
#include "kernels/paged_attention.h"
#include "kernels/streaming_policy.h"
#include "kvstore/base/status.h"
#include "worker/model/llama_config.h"

namespace kvmesh {

// Limits of one pass, which bound its memory.
inline constexpr int64_t kMaxForwardTokens = 65536;
inline constexpr int64_t kMaxForwardLogits = int64_t{1} << 28;  // rows * vocab_size

enum class LogitsWanted { kNone, kLast, kAll };

// One layer group's blocks of a sequence.
struct GroupBlocks {
  // [tokens]: the slot that a token's K/V are written to, block_table[position / block_tokens] * block_tokens +
  // position % block_tokens; or -1: nothing is written and attention reads what is in the pool at that position already
  // (the last token of a prompt that is cached whole).
  std::span<const int64_t> slot_mapping;
  // Block ids in order, covering first_position + tokens positions. What these tokens see before first_position is in
  // the pool.
  std::span<const uint32_t> block_table;
};

// One sequence's share of a pass: tokens at positions first_position, first_position + 1, ... The spans must stay valid
// during the call.
struct ForwardSequence {
  // Ids below vocab_size; not empty.
  std::span<const uint32_t> tokens;
  int64_t first_position = 0;
  std::vector<GroupBlocks> groups;  // by the config's groups
  LogitsWanted logits = LogitsWanted::kLast;
  // With a policy, positions go on beyond max_positions, up to kMaxPositions.
  StreamingPolicy policy;
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

// INVALID_ARGUMENT naming the policy: no window, out of range, sinks and window longer than what the model was trained
// for, or layers that have a window of their own.
absl::Status CheckStreamingPolicy(const StreamingPolicy& policy, const LlamaConfig& config);

// The first position that a token at `position` sees through `window` (0: all), sinks aside; later ones see no earlier.
constexpr int64_t FirstVisible(int64_t position, int64_t window) {
  return window == 0 || position < window ? 0 : position + 1 - window;
}

// INVALID_ARGUMENT naming sequence and field: a broken rule above, a position that reaches max_positions, a visible
// block or a slot outside the pool, or pools that are not one for each group, in its layout. RESOURCE_EXHAUSTED: a
// limit above.
absl::Status CheckForwardBatch(std::span<const ForwardSequence> batch, const LlamaConfig& config,
                               std::span<const KvPoolView> pools);

}  // namespace kvmesh

#endif  // KVMESH_WORKER_MODEL_FORWARD_BATCH_H_
