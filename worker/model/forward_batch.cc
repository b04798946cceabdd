#include "worker/model/forward_batch.h"

#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

absl::Status CheckPools(const LlamaConfig& config, std::span<const KvPoolView> pools) {
  if (pools.size() != config.groups.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("pools: ", pools.size(), ", the model has ", config.groups.size(), " layer groups"));
  }
  for (size_t group = 0; group < pools.size(); ++group) {
    const BlockLayout& layout = pools[group].layout;
    const bool fits = layout.layers == static_cast<int32_t>(config.groups[group].layers.size()) &&
                      layout.kv_heads == config.kv_heads && layout.head_dim == config.head_dim &&
                      layout.block_tokens > 0 && layout.block_tokens == pools[0].layout.block_tokens &&
                      KvFormatBits(layout.format) > 0 && !layout.mla();
    if (!fits) return absl::InvalidArgumentError(absl::StrCat("pools: the layout of ", group, " is not of this model"));
  }
  return absl::OkStatus();
}

// The blocks of one group with attention span `window`.
absl::Status CheckBlocks(const ForwardSequence& sequence, const GroupBlocks& blocks, int64_t window,
                         const KvPoolView& pool) {
  const auto count = static_cast<int64_t>(sequence.tokens.size());
  const int64_t block_tokens = pool.layout.block_tokens;
  const int64_t needed = (sequence.first_position + count - 1) / block_tokens + 1;
  if (static_cast<int64_t>(blocks.block_table.size()) < needed) {
    return absl::InvalidArgumentError(absl::StrCat("block_table: shorter than ", needed));
  }
  const int64_t first = FirstVisible(sequence.first_position, window) / block_tokens;
  const int64_t sink_blocks = (sequence.policy.sinks + block_tokens - 1) / block_tokens;
  for (int64_t i = 0; i < needed; ++i) {
    const uint32_t block = blocks.block_table[static_cast<size_t>(i)];
    if ((i >= first || i < sink_blocks) && block >= pool.slots) {
      return absl::InvalidArgumentError(absl::StrCat("block_table: ", block, " is not in the pool"));
    }
  }
  if (blocks.slot_mapping.size() != sequence.tokens.size()) {
    return absl::InvalidArgumentError("slot_mapping: not one slot per token");
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = sequence.first_position + i;
    const int64_t slot = int64_t{blocks.block_table[static_cast<size_t>(position / block_tokens)]} * block_tokens +
                         position % block_tokens;
    const int64_t given = blocks.slot_mapping[static_cast<size_t>(i)];
    if (given != -1 && given != slot) {
      return absl::InvalidArgumentError(
          absl::StrCat("slot_mapping: ", given, " at position ", position, ", where block_table says ", slot));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(const ForwardSequence& sequence, const LlamaConfig& config,
                           std::span<const KvPoolView> pools) {
  const auto count = static_cast<int64_t>(sequence.tokens.size());
  if (count == 0) return absl::InvalidArgumentError("tokens: none");
  const StreamingPolicy& policy = sequence.policy;
  KVMESH_RETURN_IF_ERROR(CheckStreamingPolicy(policy, config));
  const int64_t positions = policy.window == 0 ? config.max_positions : kMaxPositions;
  if (sequence.first_position < 0 || sequence.first_position > positions - count) {
    return absl::InvalidArgumentError(absl::StrCat("first_position: ", sequence.first_position, " and the ", count,
                                                   " tokens from there do not lie in 0 to ", positions - 1));
  }
  for (const uint32_t token : sequence.tokens) {
    if (token >= static_cast<uint32_t>(config.vocab_size)) {
      return absl::InvalidArgumentError(absl::StrCat("tokens: ", token, " is not below ", config.vocab_size));
    }
  }
  if (sequence.groups.size() != config.groups.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("groups: ", sequence.groups.size(), ", the model has ", config.groups.size()));
  }
  for (size_t group = 0; group < config.groups.size(); ++group) {
    const int64_t window = policy.window != 0 ? policy.window : config.groups[group].window;
    const absl::Status status = CheckBlocks(sequence, sequence.groups[group], window, pools[group]);
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat("group ", group, ": ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStreamingPolicy(const StreamingPolicy& policy, const LlamaConfig& config) {
  if (policy == StreamingPolicy{}) return absl::OkStatus();
  if (policy.window < 1 || policy.sinks < 0 || policy.sinks > config.max_positions ||
      policy.window > config.max_positions - policy.sinks) {
    return absl::InvalidArgumentError(absl::StrCat("policy: sinks ", policy.sinks, " and window ", policy.window,
                                                   " must be at least 0 and 1, and at most the model's ",
                                                   config.max_positions, " positions together"));
  }
  if (config.groups.size() != 1 || config.groups[0].window != 0) {
    return absl::InvalidArgumentError("policy: the model has layers with a window of their own");
  }
  return absl::OkStatus();
}

int64_t WantedRows(std::span<const ForwardSequence> batch) {
  int64_t out = 0;
  for (const ForwardSequence& sequence : batch) {
    if (sequence.logits == LogitsWanted::kLast) ++out;
    if (sequence.logits == LogitsWanted::kAll) out += static_cast<int64_t>(sequence.tokens.size());
  }
  return out;
}

absl::Status CheckForwardBatch(std::span<const ForwardSequence> batch, const LlamaConfig& config,
                               std::span<const KvPoolView> pools) {
  KVMESH_RETURN_IF_ERROR(CheckPools(config, pools));
  int64_t tokens = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    tokens += static_cast<int64_t>(batch[i].tokens.size());
    if (tokens > kMaxForwardTokens) {
      return absl::ResourceExhaustedError(absl::StrCat("tokens: more than ", kMaxForwardTokens, " in one pass"));
    }
    const absl::Status status = CheckSequence(batch[i], config, pools);
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat("sequence ", i, ": ", status.message()));
  }
  if (WantedRows(batch) > kMaxForwardLogits / config.vocab_size) {
    return absl::ResourceExhaustedError(absl::StrCat("logits: more than ", kMaxForwardLogits, " values in one pass"));
  }
  return absl::OkStatus();
}

}  // namespace kvmesh
