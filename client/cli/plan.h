// How much memory the K/V of a model's sequences takes, from the layouts that pools use.
#ifndef KVMESH_CLIENT_CLI_PLAN_H_
#define KVMESH_CLIENT_CLI_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/layout.h"
#include "kvstore/base/status.h"
#include "worker/model/model_shape.h"

namespace kvmesh {

inline constexpr int64_t kMaxPlanSequences = 1 << 20;

struct PlanOptions {
  KvFormat format = KvFormat::kUnspecified;
  int32_t block_tokens = 16;      // 1 to kMaxBlockTokens
  int64_t context = 0;            // tokens of a sequence, prompt and answer; 1 to kMaxPositions
  int64_t sequences = 0;          // 1 to kMaxPlanSequences
  int32_t shards = 1;             // tensor-parallel width; divides the query heads
  std::optional<int64_t> memory;  // bytes for K/V of all shards together
};

// Bytes over all shards.
struct PlanCost {
  int64_t bytes_per_token = 0;     // of one position while it is held
  int64_t bytes_per_block = 0;     // of one block; of one of each group in a total
  int64_t bytes_per_sequence = 0;  // of the blocks that a sequence holds at most
  int64_t total_bytes = 0;         // of all sequences
  // Of the wanted context, in `memory`; of one group: as if the memory were all its own. Absent without memory, and for
  // what takes none.
  std::optional<int64_t> sequences_that_fit;
};

struct GroupPlan {
  int32_t window = 0;  // 0: full attention
  int32_t layers = 0;  // 0: the group has keys only
  int64_t blocks_per_sequence = 0;
  PlanCost cost;
};

struct Plan {
  std::vector<GroupPlan> groups;  // as in ModelShape
  PlanCost total;
  int32_t kv_heads_per_shard = 0;  // 1 with MLA
  int32_t copies = 0;              // shards that store the same head: 1 where the K/V heads are divided, all with MLA
};

// Most blocks that a sequence of `context` tokens holds in a group. window 0: full attention.
// REQUIRES: context, block_tokens >= 1, window >= 0.
int64_t MostBlocksHeld(int64_t context, int64_t window, int64_t block_tokens);

// INVALID_ARGUMENT naming the flag of `kvmesh plan` and the limit: an option out of range; shards that neither divide
// the K/V heads nor are a multiple of them; a shard's block above kMaxBlockBytes, which no pool takes; a total that 63
// bits can't hold.
absl::StatusOr<Plan> MakePlan(const ModelShape& shape, const PlanOptions& options);

}  // namespace kvmesh

#endif  // KVMESH_CLIENT_CLI_PLAN_H_
