#include "worker/server/worker_options.h"

#include "absl/strings/str_cat.h"
#include "kernels/kv_format.h"
#include "kvstore/block/ticket.h"
#include "kvstore/tiers/tier_layouts.h"

namespace kvmesh {
namespace {

constexpr int32_t kMaxShardRange = 65535;  // of layers or heads, in a block's header
constexpr int32_t kMaxHeadDim = 65536;

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
  if (options.model_dir.empty() && options.layout.block_bytes <= 0) {
    return wrong("--model: give a model, or --layers, --kv-heads and --head-dim");
  }
  if (options.model_dir.empty()) {
    const BlockLayout& layout = options.layout;
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
      return wrong(absl::StrCat("--layers, --kv-heads, --head-dim, --block-tokens: a block of more than ",
                                kMaxBlockBytes, " bytes"));
    }
    KVMESH_RETURN_IF_ERROR(LayoutsBelow(options, layout).status());
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
