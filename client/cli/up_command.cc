// kvmesh up: a local cluster of real processes until Ctrl-C.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/child_processes.h"
#include "client/cli/command.h"
#include "client/cli/end_signal.h"
#include "client/client.h"
#include "kvstore/service/signals.h"

namespace kvmesh {
namespace {

struct UpFlags {
  int workers = 3;
  std::string model_dir;
  std::string model_config;  // of an engine outside: the workers run no model
  std::string listen;
  uint32_t device_blocks = 4096;
  uint32_t host_blocks = 4096;
};

constexpr int kMaxLocalWorkers = 64;
constexpr absl::Duration kStartTimeout = absl::Seconds(30);

// A shipped model lies beside the build folder; an installed program needs --model.
std::string DefaultModel() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto model = self.parent_path().parent_path().parent_path() / "deploy" / "model";
  return std::filesystem::exists(model / "config.json", error) ? model.string() : "";
}

// CANCELLED: told to end meanwhile.
absl::Status WaitUntilReady(const std::string& coordinator, int workers, ChildProcesses& children) {
  const absl::StatusOr<std::unique_ptr<Client>> client =
      Client::Create({.coordinators = {coordinator}, .tls = {.insecure = true}, .tenant_secret = std::nullopt});
  if (!client.ok()) return client.status();
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (absl::Now() < deadline) {
    std::string what;
    if (children.AnyEnded(what)) return absl::InternalError(what);
    const absl::StatusOr<v1::CoordinatorStatsResponse> stats = (*client)->Stats();
    if (stats.ok() && stats->workers_ready() == static_cast<uint64_t>(workers)) return absl::OkStatus();
    if (AwaitEndSignal(absl::Milliseconds(50)) != 0) return absl::CancelledError("told to end");
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the workers were not ready within ", absl::FormatDuration(kStartTimeout)));
}

// Waits for Ctrl-C, SIGTERM, SIGHUP, or a child that ends by itself.
absl::Status WaitForEnd(ChildProcesses& children) {
  while (AwaitEndSignal(absl::Milliseconds(200)) == 0) {
    std::string what;
    if (children.AnyEnded(what)) return absl::InternalError(what);
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Run(const UpFlags& flags) {
  if (flags.workers < 1 || flags.workers > kMaxLocalWorkers) {
    return absl::InvalidArgumentError(absl::StrCat("--workers: must be 1 to ", kMaxLocalWorkers));
  }
  const bool runs_model = flags.model_config.empty();
  const std::string model = !runs_model               ? flags.model_config
                            : flags.model_dir.empty() ? DefaultModel()
                                                      : flags.model_dir;
  if (model.empty()) return absl::InvalidArgumentError("--model: needed, no shipped model is beside this program");
  std::string coordinator = flags.listen;
  if (coordinator.empty()) {
    const absl::StatusOr<int> port = FreePort();
    if (!port.ok()) return port.status();
    coordinator = absl::StrCat("127.0.0.1:", *port);
  }
  BlockSignals();
  ChildProcesses children;
  KVMESH_RETURN_IF_ERROR(children.Start("kvmesh-coordinator", {"--insecure", "--listen", coordinator}));
  for (int i = 0; i < flags.workers; ++i) {
    KVMESH_RETURN_IF_ERROR(children.Start(
        "kvmesh-worker", {"--insecure", "--id", absl::StrCat("worker-", i), "--coordinator", coordinator,
                          runs_model ? "--model" : "--model-config", model, "--device-blocks",
                          absl::StrCat(flags.device_blocks), "--host-blocks", absl::StrCat(flags.host_blocks)}));
  }
  const absl::Status ready = WaitUntilReady(coordinator, flags.workers, children);
  if (absl::IsCancelled(ready)) return 0;
  KVMESH_RETURN_IF_ERROR(ready);
  const char* const next = runs_model ? "generate --prompt \"In the beginning\" --max-tokens 40" : "stats";
  std::printf("ready: kvmesh %s --insecure --coordinator %s\n", next, coordinator.c_str());
  std::fflush(stdout);
  KVMESH_RETURN_IF_ERROR(WaitForEnd(children));
  KVMESH_RETURN_IF_ERROR(children.Stop());
  return 0;
}

}  // namespace

void AddUpCommand(CLI::App& app, RunCommand& run) {
  auto flags = std::make_shared<UpFlags>();
  CLI::App* command = app.add_subcommand("up", "Run a local cluster until Ctrl-C");
  command->add_option("--workers", flags->workers, "Workers to start");
  CLI::Option* const model =
      command->add_option("--model", flags->model_dir, "Folder of the model (default: the shipped one)")
          ->check(CLI::ExistingDirectory);
  command
      ->add_option("--model-config", flags->model_config,
                   "config.json of the model of an engine outside; the workers then run none")
      ->check(CLI::ExistingFile)
      ->excludes(model);
  command->add_option("--listen", flags->listen, "host:port of the coordinator (default: a free port)");
  command->add_option("--device-blocks", flags->device_blocks, "Device blocks of each worker");
  command->add_option("--host-blocks", flags->host_blocks, "Host blocks of each worker");
  command->callback([flags, &run] { run = [flags] { return Run(*flags); }; });
}

}  // namespace kvmesh
