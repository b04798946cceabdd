#include "worker/server/worker_options.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/kv_format.h"
#include "kvstore/block/ticket.h"
#include "kvstore/tiers/tier_layouts.h"

namespace kvmesh {
namespace {

constexpr int32_t kMaxShardRange = 65535;  // of layers or heads, in a block's header
constexpr int32_t kMaxHeadDim = 65536;

// What an engine's model asks for beyond what any pool holds and Attend attends to.
absl::Status ValidateEngineModel(const WorkerOptions& options) {
  const ModelShape& shape = *options.engine_model;
  const auto wrong = [](const absl::AlphaNum& what) {
    return absl::InvalidArgumentError(absl::StrCat("--model-config: ", what));
  };
  if (!options.model_dir.empty()) return wrong("not with --model");
  if (options.layout.block_bytes > 0) return wrong("not with --layers, --kv-heads and --head-dim");
  const std::vector<GroupPool> pools = EnginePools(options);
  const bool windows = std::any_of(pools.begin(), pools.end(), [](const GroupPool& p) { return p.group.window > 0; });
  if (shape.mla() && windows) return wrong("sliding_window: not supported with kv_lora_rank");
  if (shape.mla() && shape.head_dim > kMaxLatentRow) {
    return wrong(absl::StrCat("kv_lora_rank: rows of ", shape.head_dim,
                              " elements together with qk_rope_head_dim, the limit is ", kMaxLatentRow));
  }
  for (const GroupPool& pool : pools) {
    if (pool.layout.block_bytes > kMaxBlockBytes) {
      return absl::InvalidArgumentError(absl::StrCat("--block-tokens: ", options.block_tokens, " make blocks of ",
                                                     pool.layout.block_bytes, " bytes, the limit is ", kMaxBlockBytes));
    }
    KVMESH_RETURN_IF_ERROR(LayoutsBelow(options, pool.layout).status());
  }
  return absl::OkStatus();
}

absl::Status ValidateEngineLayout(const WorkerOptions& options) {
  const auto wrong = [](absl::string_view what) { return absl::InvalidArgumentError(what); };
  const BlockLayout& layout = options.layout;
  if (layout.block_bytes <= 0) {
    return wrong("--model: give a model, a --model-config, or --layers, --kv-heads and --head-dim");
  }
  // Each factor first, so that the product can't overflow.
  for (const auto& [flag, value] : {std::pair("--layers", layout.layers), {"--kv-heads", layout.kv_heads}}) {
    if (value > kMaxShardRange) return wrong(absl::StrCat(flag, ": ", value, ", the limit is ", kMaxShardRange));
  }
  if (layout.head_dim > kMaxHeadDim) {
    return wrong(absl::StrCat("--head-dim: ", layout.head_dim, ", the limit is ", kMaxHeadDim));
  }
  if (layout.format == KvFormat::kInt4 && layout.head_dim % 2 != 0) {
    return wrong(absl::StrCat("--head-dim: ", layout.head_dim, ", must be even for --kv-format int4"));
  }
  const double bytes = 8.0 * layout.layers * layout.kv_heads * layout.block_tokens * layout.head_dim;
  if (bytes > 2.0 * kMaxBlockBytes || layout.block_bytes > kMaxBlockBytes) {
    return wrong(absl::StrCat("--layers, --kv-heads, --head-dim, --block-tokens: a block of more than ", kMaxBlockBytes,
                              " bytes"));
  }
  return LayoutsBelow(options, layout).status();
}

}  // namespace

absl::Status ValidateWorkerOptions(const WorkerOptions& options) {
  const auto wrong = [](absl::string_view what) { return absl::InvalidArgumentError(what); };
  if (options.worker_id.empty() || options.worker_id.size() > kMaxWorkerIdBytes) {
    return wrong(absl::StrCat("--id: must have 1 to ", kMaxWorkerIdBytes, " bytes"));
  }
  const std::string host = options.listen.substr(0, options.listen.rfind(':'));
  if (options.advertise.empty() && (host == "0.0.0.0" || host == "[::]")) {
    return wrong("--advertise: needed when --listen takes any address");
  }
  if (options.block_tokens < 1 || options.block_tokens > kMaxBlockTokens) {
    return wrong(absl::StrCat("--block-tokens: ", options.block_tokens, ", must be 1 to ", kMaxBlockTokens));
  }
  if (KvFormatBits(options.format) == 0) return wrong("--kv-format: none");
  if (options.engine_model) {
    KVMESH_RETURN_IF_ERROR(ValidateEngineModel(options));
  } else if (options.model_dir.empty()) {
    KVMESH_RETURN_IF_ERROR(ValidateEngineLayout(options));
  }
  if (options.device_blocks == 0) return wrong("--device-blocks: must be at least 1");
  if (options.threads < 1 || options.threads > 256) return wrong("--threads: must be 1 to 256");
  if (!(options.max_pinned_fraction > 0) || options.max_pinned_fraction > 1) {
    return wrong("--max-pinned-fraction: must be above 0 and at most 1");
  }
  if (!(options.prefill_tokens_per_second > 0) || !(options.peer_bytes_per_second > 0) ||
      !(options.host_bytes_per_second > 0) || !(options.disk_bytes_per_second > 0)) {
    return wrong("rates: must be above 0");
  }
  KVMESH_RETURN_IF_ERROR(ValidateTls(options.tls));
  return ValidateMembers(options.members, options.tls);
}

std::vector<GroupPool> EnginePools(const WorkerOptions& options) {
  std::vector<GroupPool> pools;
  if (!options.engine_model) {
    LayerGroup all;
    all.layers.resize(static_cast<size_t>(options.layout.layers));
    std::iota(all.layers.begin(), all.layers.end(), 0);
    pools.push_back({std::move(all), options.layout});
    return pools;
  }
  const ModelShape& shape = *options.engine_model;
  for (const LayerGroup& group : shape.groups) {
    if (group.layers.empty()) continue;
    pools.push_back({group, shape.GroupLayout(group, options.format, options.block_tokens, shape.kv_heads)});
  }
  return pools;
}

absl::StatusOr<LowerLayouts> LayoutsBelow(const WorkerOptions& options, const BlockLayout& pool) {
  const auto in_format = [&pool](absl::string_view flag, std::optional<KvFormat> format) {
    absl::StatusOr<BlockLayout> layout = LayoutInFormat(pool, format.value_or(pool.format));
    if (!layout.ok()) layout = absl::InvalidArgumentError(absl::StrCat(flag, ": ", layout.status().message()));
    return layout;
  };
  const absl::StatusOr<BlockLayout> host = in_format("--host-format", options.host_format);
  if (!host.ok()) return host.status();
  const absl::StatusOr<BlockLayout> disk = in_format("--disk-format", options.disk_format);
  if (!disk.ok()) return disk.status();
  return LowerLayouts{*host, *disk};
}

}  // namespace kvmesh
