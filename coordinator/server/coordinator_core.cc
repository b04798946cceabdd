#include "coordinator/server/coordinator_core.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kvstore/service/host_port.h"
#include "kvstore/service/log.h"

namespace kvmesh {
namespace {

constexpr size_t kIdentities = 4096;
constexpr size_t kMaxThreads = 256;
// Each holds a thread of the server, which has 256.
constexpr size_t kMaxWaitingCalls = 192;

// A replaced incarnation keeps its slot until it is swept: room for one of each worker.
PrefixIndexOptions IndexOptions(const CoordinatorOptions& options) {
  PrefixIndexOptions out = options.index;
  out.max_workers = 2 * options.registry.max_workers;
  return out;
}

absl::Status CheckAddress(absl::string_view field, const std::string& address) {
  const absl::Status status = ParseHostPort(address).status();
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(field, ": ", status.message()));
}

}  // namespace

absl::Status CoordinatorOptions::Validate() const {
  KVMESH_RETURN_IF_ERROR(CheckAddress("listen", listen));
  if (!ops_listen.empty()) KVMESH_RETURN_IF_ERROR(CheckAddress("ops_listen", ops_listen));
  KVMESH_RETURN_IF_ERROR(ValidateTls(tls));
  KVMESH_RETURN_IF_ERROR(ValidateMembers(members, tls));
  KVMESH_RETURN_IF_ERROR(index.Validate());
  KVMESH_RETURN_IF_ERROR(registry.Validate());
  KVMESH_RETURN_IF_ERROR(placement.Validate());
  KVMESH_RETURN_IF_ERROR(router.Validate());
  if (placement.max_candidates > 64) return absl::InvalidArgumentError("placement max_candidates: more than 64");
  if (command_timeout <= absl::ZeroDuration()) return absl::InvalidArgumentError("command_timeout: must be positive");
  if (threads == 0 || threads > kMaxThreads) return absl::InvalidArgumentError("threads: not 1 to 256");
  if (max_waiting_calls == 0 || max_waiting_calls > kMaxWaitingCalls) {
    return absl::InvalidArgumentError(absl::StrCat("max_waiting_calls: not 1 to ", kMaxWaitingCalls));
  }
  if (max_queued_routes == 0) return absl::InvalidArgumentError("max_queued_routes: must be at least 1");
  if (registration_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("registration_timeout: must be positive");
  }
  if (clock == nullptr || random == nullptr) return absl::InvalidArgumentError("clock, random: must be given");
  return absl::OkStatus();
}

CoordinatorCore::CoordinatorCore(const CoordinatorOptions& opts)
    : options(opts),
      incarnation(NewIncarnation(*options.random)),
      started(options.clock->Now()),
      counters(metrics),
      report_metrics(metrics),
      call_metrics(metrics),
      index(IndexOptions(options)),
      placer(options.placement, options.placement_clock == nullptr ? *options.clock : *options.placement_clock,
             *options.random),
      commands(*options.clock, report_metrics),
      registry(options.registry, index, *options.clock,
               [this](const WorkerEntry& worker) {
                 placer.Forget(worker.slot());
                 Log(LogLevel::kWarning, "coordinator", "worker gone",
                     {{"worker", worker.description().id}, {"incarnation", worker.description().incarnation.ToHex()}});
               }),
      router(options.router, index, registry, placer, *options.clock, *options.random,
             DeriveTicketKey(options.cluster_secret)),
      identities(options.cluster_secret, kIdentities),
      collect_hook_(metrics.OnCollect([this] { counters.Collect(registry, index, placer); })) {}

void CoordinatorCore::Maintain() {
  registry.ExpireLost();
  commands.Expire();
  if (warmed_) return;
  const absl::Duration age = options.clock->Now() - started;
  const auto table = registry.Table();
  // Workers that were there before this start need a moment to connect.
  const bool settled =
      age >= 2 * options.registry.heartbeat_interval && !table->workers.empty() &&
      std::all_of(table->workers.begin(), table->workers.end(), [](const auto& worker) { return worker->warmed(); });
  if (settled || age >= options.warm_grace) warmed_ = true;
}

std::string CoordinatorCore::NotReady() const {
  if (draining) return "draining";
  return warmed_ ? "" : "warming";
}

}  // namespace kvmesh
