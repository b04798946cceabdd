#include "worker/server/worker_options.h"

#include "absl/strings/str_cat.h"
#include "kvstore/block/ticket.h"

namespace kvmesh {

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
  if (options.model_dir.empty() && options.layout.block_bytes <= 0) {
    return wrong("--model: give a model, or --layers, --kv-heads and --head-dim");
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
  return ValidateTls(options.tls);
}

}  // namespace kvmesh
