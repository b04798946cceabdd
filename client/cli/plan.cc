#include "client/cli/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

absl::Status CheckRange(absl::string_view flag, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", value, ", must be 1 to ", max));
}

absl::Status CheckOptions(const ModelShape& shape, const PlanOptions& options) {
  KVMESH_RETURN_IF_ERROR(CheckRange("--block-tokens", options.block_tokens, kMaxBlockTokens));
  KVMESH_RETURN_IF_ERROR(CheckRange("--context", options.context, kMaxPositions));
  KVMESH_RETURN_IF_ERROR(CheckRange("--sequences", options.sequences, kMaxPlanSequences));
  KVMESH_RETURN_IF_ERROR(CheckRange("--tp", options.shards, shape.heads));
  if (options.memory && *options.memory < 1) return absl::InvalidArgumentError("--memory: must be at least 1 byte");
  if (KvFormatBits(options.format) == 0) return absl::InvalidArgumentError("--kv-format: no format");
  if (shape.heads % options.shards != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tp: ", options.shards, " does not divide the model's ", shape.heads, " query heads"));
  }
  if (shape.kv_heads % options.shards != 0 && options.shards % shape.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--tp: ", options.shards, " neither divides the model's ",
                                                   shape.kv_heads, " K/V heads nor is a multiple of them"));
  }
  return absl::OkStatus();
}

// Fills what follows from bytes_per_sequence. False: more than 63 bits.
bool Complete(const PlanOptions& options, PlanCost& cost) {
  if (__builtin_mul_overflow(cost.bytes_per_sequence, options.sequences, &cost.total_bytes)) return false;
  if (options.memory && cost.bytes_per_sequence > 0) {
    cost.sequences_that_fit = *options.memory / cost.bytes_per_sequence;
  }
  return true;
}

}  // namespace

// To continue from t computed tokens a window group must hold the positions [max(0, t - W + 1), t) (DESIGN section 5);
// to compute position t it also needs the slot of t. These are W positions at most, and they touch the most blocks when
// the first one is the last of its block: then they end W + B - 1 slots after that block's start, in block
// ceil((W + B - 1) / B). A context shorter than that never gets so far. Holding on to what the last full block's end
// needs as a boundary takes no more: up to ceil((W - 1) / B) blocks before it, and the block that is being filled.
int64_t MostBlocksHeld(int64_t context, int64_t window, int64_t block_tokens) {
  const int64_t slots = window == 0 ? context : std::min(context, window + block_tokens - 1);
  return (slots + block_tokens - 1) / block_tokens;
}

absl::StatusOr<Plan> MakePlan(const ModelShape& shape, const PlanOptions& options) {
  KVMESH_RETURN_IF_ERROR(CheckOptions(shape, options));
  Plan plan;
  plan.kv_heads_per_shard = std::max(shape.kv_heads / options.shards, 1);
  plan.copies = plan.kv_heads_per_shard * options.shards / shape.kv_heads;
  bool fits = true;
  for (const LayerGroup& group : shape.groups) {
    GroupPlan out{.window = group.window, .layers = static_cast<int32_t>(group.layers.size())};
    if (out.layers > 0) {
      const BlockLayout layout =
          shape.GroupLayout(group, options.format, options.block_tokens, plan.kv_heads_per_shard);
      if (layout.block_bytes > kMaxBlockBytes) {
        return absl::InvalidArgumentError(absl::StrCat("--block-tokens: ", options.block_tokens, " make blocks of ",
                                                       layout.block_bytes, " bytes, must be at most ", kMaxBlockBytes));
      }
      out.blocks_per_sequence = MostBlocksHeld(options.context, group.window, options.block_tokens);
      out.cost.bytes_per_block = layout.block_bytes * options.shards;
      out.cost.bytes_per_token = out.cost.bytes_per_block / options.block_tokens;
      out.cost.bytes_per_sequence = out.cost.bytes_per_block * out.blocks_per_sequence;
    }
    fits = Complete(options, out.cost) && fits;
    plan.total.bytes_per_token += out.cost.bytes_per_token;
    plan.total.bytes_per_block += out.cost.bytes_per_block;
    plan.total.bytes_per_sequence += out.cost.bytes_per_sequence;
    plan.groups.push_back(out);
  }
  fits = Complete(options, plan.total) && fits;
  if (!fits) return absl::InvalidArgumentError("--sequences: all together exceed 2^63 bytes");
  return plan;
}

}  // namespace kvmesh
