// kvmesh stats: what the cluster holds and how well it hits.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "client/cli/command.h"
#include "client/cli/inputs.h"

namespace kvmesh {
namespace {

struct StatsFlags {
  ClusterFlags cluster;
  bool json = false;
};

double HitRate(const v1::CoordinatorStatsResponse& stats) {
  return stats.requested_tokens() == 0
             ? 0
             : static_cast<double>(stats.actual_hit_tokens()) / static_cast<double>(stats.requested_tokens());
}

std::string StateName(v1::WorkerStatus::State state) {
  const std::string& name = v1::WorkerStatus::State_Name(state);
  return absl::AsciiStrToLower(absl::StripPrefix(name, "STATE_"));
}

void PrintJson(const v1::CoordinatorStatsResponse& stats, const v1::ListWorkersResponse& workers) {
  nlohmann::ordered_json out;
  out["workers_ready"] = stats.workers_ready();
  out["distinct_blocks"] = stats.distinct_blocks();
  out["routes"] = stats.routes();
  out["requested_tokens"] = stats.requested_tokens();
  out["predicted_hit_tokens"] = stats.predicted_hit_tokens();
  out["actual_hit_tokens"] = stats.actual_hit_tokens();
  out["hit_rate"] = HitRate(stats);
  out["hits_by_tier"] = {{"device", stats.hits().device()},
                         {"host", stats.hits().host()},
                         {"disk", stats.hits().disk()},
                         {"peer", stats.hits().peer()}};
  out["placements_in_flight"] = stats.placements_in_flight();
  out["resyncs"] = stats.resyncs();
  out["workers"] = nlohmann::ordered_json::array();
  for (const v1::WorkerStatus& worker : workers.workers()) {
    out["workers"].push_back({{"worker", worker.info().worker_id()},
                              {"address", worker.info().address()},
                              {"state", StateName(worker.state())},
                              {"device_blocks", worker.device_blocks()},
                              {"memory_blocks", worker.memory_blocks()},
                              {"disk_blocks", worker.disk_blocks()},
                              {"queued_tokens", worker.queued_tokens()},
                              {"heartbeat_age_ms", worker.heartbeat_age_ms()}});
  }
  std::printf("%s\n", out.dump(2).c_str());
}

void Print(const v1::CoordinatorStatsResponse& stats, const v1::ListWorkersResponse& workers) {
  std::printf("%llu routes, %llu tokens requested, %llu hit (%.1f %%), %llu blocks known\n\n",
              static_cast<unsigned long long>(stats.routes()),
              static_cast<unsigned long long>(stats.requested_tokens()),
              static_cast<unsigned long long>(stats.actual_hit_tokens()), 100 * HitRate(stats),
              static_cast<unsigned long long>(stats.distinct_blocks()));
  std::printf("%-24s %-22s %-9s %10s %10s %10s %10s\n", "worker", "address", "state", "device", "memory", "disk",
              "queued");
  for (const v1::WorkerStatus& worker : workers.workers()) {
    std::printf("%-24s %-22s %-9s %10llu %10llu %10llu %10llu\n", worker.info().worker_id().c_str(),
                worker.info().address().c_str(), StateName(worker.state()).c_str(),
                static_cast<unsigned long long>(worker.device_blocks()),
                static_cast<unsigned long long>(worker.memory_blocks()),
                static_cast<unsigned long long>(worker.disk_blocks()),
                static_cast<unsigned long long>(worker.queued_tokens()));
  }
}

absl::StatusOr<int> Run(const StatsFlags& flags) {
  absl::StatusOr<std::unique_ptr<Client>> client = ConnectCluster(flags.cluster);
  if (!client.ok()) return client.status();
  const absl::StatusOr<v1::CoordinatorStatsResponse> stats = (*client)->Stats();
  if (!stats.ok()) return stats.status();
  const absl::StatusOr<v1::ListWorkersResponse> workers = (*client)->ListWorkers();
  if (!workers.ok()) return workers.status();
  flags.json ? PrintJson(*stats, *workers) : Print(*stats, *workers);
  return 0;
}

}  // namespace

void AddStatsCommand(CLI::App& app, RunCommand& run) {
  auto flags = std::make_shared<StatsFlags>();
  CLI::App* command = app.add_subcommand("stats", "Show the cluster's workers and hit rate");
  AddClusterFlags(*command, flags->cluster, /*required=*/true);
  command->add_flag("--json", flags->json, "One JSON object on standard output");
  command->callback([flags, &run] { run = [flags] { return Run(*flags); }; });
}

}  // namespace kvmesh
