#include "worker/model/forward_batch.h"

#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

absl::Status CheckPool(const LlamaConfig& config, const KvPoolView& pool) {
  const BlockLayout& layout = pool.layout;
  const bool fits = layout.layers == config.layers && layout.kv_heads == config.kv_heads &&
                    layout.head_dim == config.head_dim && layout.block_tokens > 0 &&
                    KvFormatBits(layout.format) >= 16 && !layout.mla();
  return fits ? absl::OkStatus() : absl::InvalidArgumentError("pool: its layout is not of this model");
}

absl::Status CheckSequence(const ForwardSequence& sequence, const LlamaConfig& config, const KvPoolView& pool) {
  const auto count = static_cast<int64_t>(sequence.tokens.size());
  if (count == 0) return absl::InvalidArgumentError("tokens: none");
  if (sequence.first_position < 0 || sequence.first_position > config.max_positions - count) {
    return absl::InvalidArgumentError(absl::StrCat("first_position: ", sequence.first_position, " and the ", count,
                                                   " tokens from there do not lie in 0 to ", config.max_positions - 1));
  }
  for (const uint32_t token : sequence.tokens) {
    if (token >= static_cast<uint32_t>(config.vocab_size)) {
      return absl::InvalidArgumentError(absl::StrCat("tokens: ", token, " is not below ", config.vocab_size));
    }
  }
  const int64_t block_tokens = pool.layout.block_tokens;
  const int64_t blocks = (sequence.first_position + count - 1) / block_tokens + 1;
  if (static_cast<int64_t>(sequence.block_table.size()) < blocks) {
    return absl::InvalidArgumentError(absl::StrCat("block_table: shorter than ", blocks));
  }
  for (const uint32_t block : sequence.block_table.first(static_cast<size_t>(blocks))) {
    if (block >= pool.slots)
      return absl::InvalidArgumentError(absl::StrCat("block_table: ", block, " is not in the pool"));
  }
  if (sequence.slot_mapping.size() != sequence.tokens.size()) {
    return absl::InvalidArgumentError("slot_mapping: not one slot per token");
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = sequence.first_position + i;
    const int64_t slot = int64_t{sequence.block_table[static_cast<size_t>(position / block_tokens)]} * block_tokens +
                         position % block_tokens;
    const int64_t given = sequence.slot_mapping[static_cast<size_t>(i)];
    if (given != -1 && given != slot) {
      return absl::InvalidArgumentError(
          absl::StrCat("slot_mapping: ", given, " at position ", position, ", where block_table says ", slot));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t WantedRows(std::span<const ForwardSequence> batch) {
  int64_t out = 0;
  for (const ForwardSequence& sequence : batch) {
    if (sequence.logits == LogitsWanted::kLast) ++out;
    if (sequence.logits == LogitsWanted::kAll) out += static_cast<int64_t>(sequence.tokens.size());
  }
  return out;
}

absl::Status CheckForwardBatch(std::span<const ForwardSequence> batch, const LlamaConfig& config,
                               const KvPoolView& pool) {
  KVMESH_RETURN_IF_ERROR(CheckPool(config, pool));
  int64_t tokens = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    tokens += static_cast<int64_t>(batch[i].tokens.size());
    if (tokens > kMaxForwardTokens) {
      return absl::ResourceExhaustedError(absl::StrCat("tokens: more than ", kMaxForwardTokens, " in one pass"));
    }
    const absl::Status status = CheckSequence(batch[i], config, pool);
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat("sequence ", i, ": ", status.message()));
  }
  if (WantedRows(batch) > kMaxForwardLogits / config.vocab_size) {
    return absl::ResourceExhaustedError(absl::StrCat("logits: more than ", kMaxForwardLogits, " values in one pass"));
  }
  return absl::OkStatus();
}

}  // namespace kvmesh
