// kvmesh-worker: reads flags, wires a WorkerServer, waits for SIGTERM.
//
// Shutdown: not ready and draining -> no new work -> running calls end -> memory is flushed to disk -> report streams
// end.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "kernels/kv_format.h"
#include "kvstore/block/secrets.h"
#include "kvstore/service/flags.h"
#include "kvstore/service/log.h"
#include "kvstore/service/members.h"
#include "kvstore/service/signals.h"
#include "kvstore/service/tls.h"
#include "worker/model/model_shape.h"
#include "worker/model/strict_json.h"
#include "worker/server/worker_server.h"

namespace kvmesh {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;

struct Flags {
  WorkerOptions options;
  std::string secret_file;
  std::string format = "fp32";
  std::string host_format;  // empty: the pool's
  std::string disk_format;
  std::string model_config;
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  uint64_t slow_ms = 1000;
  uint64_t sibling_wait_ms = 10000;
  uint64_t claim_idle_ms = 5000;
  uint64_t drain_ms = 10000;
};

void AddFlags(CLI::App& app, Flags& flags) {
  WorkerOptions& o = flags.options;
  app.add_option("--id", o.worker_id, "Worker id, unique in the cluster (default: host name and --listen)");
  app.add_option("--listen", o.listen, "host:port of the Worker service; port 0 takes a free one");
  app.add_option("--advertise", o.advertise, "host:port by which peers reach it (default: what is listened on)");
  app.add_option("--ops-listen", o.ops_listen, "ip:port of /healthz, /readyz and /metrics");
  app.add_option("--coordinator", o.coordinators, "host:port of each coordinator")->delimiter(',');
  AddTlsFlags(app, o.tls);
  AddMemberFlag(app, o.members);
  app.add_option("--cluster-secret-file", flags.secret_file, "Raw bytes shared by all servers");
  app.add_option("--model", o.model_dir, "Folder of a LlamaForCausalLM model to run");
  app.add_option("--threads", o.threads, "Threads of the model");
  app.add_option("--kv-format", flags.format, "fp32, fp16, bf16, fp8, int8 or int4");
  app.add_option("--block-tokens", o.block_tokens, "Tokens of a block");
  app.add_option("--model-config", flags.model_config,
                 "Without --model: config.json of the engine's model, as Hugging Face has it");
  app.add_option("--layers", flags.layers, "Without either: layers of the engine's cache");
  app.add_option("--kv-heads", flags.kv_heads, "Without either: K/V heads");
  app.add_option("--head-dim", flags.head_dim, "Without either: head dimension");
  app.add_option("--device-blocks", o.device_blocks, "Blocks of the device pool, for each layer group of the model");
  app.add_option("--host-blocks", o.host_blocks, "Blocks of the host tier, likewise; 0: none");
  app.add_option("--host-format", flags.host_format,
                 "Format of its blocks: fp32, fp16, bf16, fp8, int8 or int4 (default: --kv-format)");
  app.add_option("--disk-dir", o.disk_dir, "Folder of the disk tier (default: none)");
  app.add_option("--disk-format", flags.disk_format, "Format of its blocks, as --host-format (default: --kv-format)");
  app.add_option("--disk-id", o.disk_id, "Owner of the folder (default: the worker id)");
  app.add_option("--disk-bytes", o.disk_bytes, "Most bytes on disk; 0: no cap");
  app.add_option("--disk-floor-bytes", o.disk_floor_bytes, "Bytes of the file system that are left free");
  app.add_option("--disk-reserve-bytes", o.disk_reserve_bytes, "Bytes kept for the catalog");
  app.add_option("--policy", o.policy, "Eviction policy: lru");
  app.add_option("--max-pinned-fraction", o.max_pinned_fraction, "Share of the device pool that may be pinned");
  app.add_option("--max-sequences", o.sequences.max_sequences, "Open sequences at most");
  app.add_option("--sibling-wait-ms", flags.sibling_wait_ms, "Longest wait for a sibling that computes the same block");
  app.add_option("--claim-idle-ms", flags.claim_idle_ms,
                 "Siblings stop waiting for a sequence that seals nothing for it");
  app.add_option("--slow-ms", flags.slow_ms, "Calls at least this long are logged");
  app.add_option("--drain-ms", flags.drain_ms, "Time that running calls have to end after SIGTERM");
}

absl::StatusOr<KvFormat> ParseFormat(absl::string_view flag, const std::string& name) {
  const std::optional<KvFormat> format = ParseKvFormat(name);
  if (!format) return absl::InvalidArgumentError(absl::StrCat(flag, ": \"", name, "\" is no format"));
  return *format;
}

absl::StatusOr<ModelShape> ReadEngineModel(const std::string& path) {
  const std::string what = absl::StrCat("--model-config: ", path);
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxConfigBytes);
  if (!text.ok()) return absl::Status(text.status().code(), absl::StrCat("--model-config: ", text.status().message()));
  return ParseModelShape(*text, what);
}

absl::Status Complete(Flags& flags) {
  WorkerOptions& o = flags.options;
  if (o.worker_id.empty()) {
    if (o.listen.ends_with(":0")) return absl::InvalidArgumentError("--id: needed when --listen takes a free port");
    char host[64] = {};
    gethostname(host, sizeof(host) - 1);
    o.worker_id = absl::StrCat(host, "-", o.listen);
  }
  if (!flags.secret_file.empty()) {
    absl::StatusOr<std::string> secret = ReadSecretFile(flags.secret_file);
    if (!secret.ok())
      return absl::Status(secret.status().code(), absl::StrCat("--cluster-secret-file: ", secret.status().message()));
    o.cluster_secret = *std::move(secret);
  }
  const absl::StatusOr<KvFormat> format = ParseFormat("--kv-format", flags.format);
  if (!format.ok()) return format.status();
  o.format = *format;
  for (const auto& [flag, name, option] : {std::tuple("--host-format", &flags.host_format, &o.host_format),
                                           {"--disk-format", &flags.disk_format, &o.disk_format}}) {
    if (name->empty()) continue;
    const absl::StatusOr<KvFormat> below = ParseFormat(flag, *name);
    if (!below.ok()) return below.status();
    *option = *below;
  }
  if (!flags.model_config.empty()) {
    if (flags.layers != 0 || flags.kv_heads != 0 || flags.head_dim != 0) {
      return absl::InvalidArgumentError("--model-config: not with --layers, --kv-heads and --head-dim");
    }
    absl::StatusOr<ModelShape> shape = ReadEngineModel(flags.model_config);
    if (!shape.ok()) return shape.status();
    o.engine_model = *std::move(shape);
  }
  if (o.model_dir.empty() && flags.layers > 0 && flags.kv_heads > 0 && flags.head_dim > 0) {
    o.layout = CanonicalLayout(o.format, flags.layers, flags.kv_heads, o.block_tokens, flags.head_dim);
  }
  o.slow_call = absl::Milliseconds(flags.slow_ms);
  o.sibling_wait = absl::Milliseconds(flags.sibling_wait_ms);
  o.claim_idle = absl::Milliseconds(flags.claim_idle_ms);
  return ValidateWorkerOptions(o);
}

int Main(int argc, char** argv) {
  BlockSignals();
  CLI::App app("kvmesh-worker: owns a paged K/V pool, resumes sequences from cached prefixes, serves peers.");
  Flags flags;
  AddFlags(app, flags);
  ParseFlags(app, argc, argv);
  ExitOnUsageError(app, Complete(flags));
  absl::StatusOr<std::unique_ptr<WorkerServer>> server = WorkerServer::Start(flags.options);
  if (!server.ok()) {
    Log(LogLevel::kError, "worker", "cannot start", {{"error", server.status().ToString()}});
    return 1;
  }
  WaitForShutdown(nullptr);
  (*server)->Shutdown(absl::Milliseconds(flags.drain_ms));
  return 0;
}

}  // namespace
}  // namespace kvmesh

int main(int argc, char** argv) { return kvmesh::Main(argc, argv); }
