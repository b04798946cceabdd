// kvmesh lookup: who holds how much of a prompt, and where it would run.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "client/cli/command.h"
#include "client/cli/inputs.h"

namespace kvmesh {
namespace {

struct LookupFlags {
  ClusterFlags cluster;
  std::string identity;
  std::string tokens_file;
  std::vector<std::string> accept;
  bool json = false;
};

nlohmann::ordered_json ToJson(const v1::RouteResponse& route, size_t prompt_tokens) {
  nlohmann::ordered_json out;
  out["prompt_tokens"] = prompt_tokens;
  out["matched_tokens"] = route.matched_tokens();
  out["workers"] = nlohmann::ordered_json::array();
  for (const v1::Holder& holder : route.holders()) {
    out["workers"].push_back({{"worker", holder.worker_id()},
                              {"device", holder.device_tokens()},
                              {"memory", holder.memory_tokens()},
                              {"disk", holder.disk_tokens()}});
  }
  nlohmann::ordered_json placement;
  placement["worker"] = route.worker_id();
  placement["address"] = route.worker_address();
  placement["predicted_hit_tokens"] = route.predicted_hit_tokens();
  placement["sources"] = nlohmann::ordered_json::array();
  for (const v1::SourceSpan& source : route.sources()) {
    placement["sources"].push_back({{"first_block", source.first_block()},
                                    {"block_count", source.block_count()},
                                    {"peer", source.peer_id()},
                                    {"set", v1::BlockSet_Name(source.set())},
                                    {"bytes", source.predicted_bytes()}});
  }
  placement["reasons"] = nlohmann::ordered_json::array();
  for (const v1::PlacementReason& reason : route.reasons()) {
    placement["reasons"].push_back({{"worker", reason.worker_id()},
                                    {"local_tokens", reason.local_tokens()},
                                    {"pull_tokens", reason.pull_tokens()},
                                    {"compute_tokens", reason.compute_tokens()},
                                    {"compute_seconds", reason.compute_seconds()},
                                    {"load_seconds", reason.load_seconds()},
                                    {"queue_seconds", reason.queue_seconds()},
                                    {"total_seconds", reason.total_seconds()}});
  }
  out["placement"] = std::move(placement);
  return out;
}

void Print(const v1::RouteResponse& route, size_t prompt_tokens) {
  std::printf("%zu prompt tokens, %llu held somewhere\n\n", prompt_tokens,
              static_cast<unsigned long long>(route.matched_tokens()));
  std::printf("%-24s %10s %10s %10s\n", "worker", "device", "memory", "disk");
  for (const v1::Holder& holder : route.holders()) {
    std::printf("%-24s %10llu %10llu %10llu\n", holder.worker_id().c_str(),
                static_cast<unsigned long long>(holder.device_tokens()),
                static_cast<unsigned long long>(holder.memory_tokens()),
                static_cast<unsigned long long>(holder.disk_tokens()));
  }
  std::printf("\nplaced on %s (%s)\n", route.worker_id().c_str(), route.worker_address().c_str());
  std::printf("%-24s %8s %8s %8s %10s %10s %10s %10s\n", "candidate", "local", "pull", "compute", "compute s", "load s",
              "queue s", "total s");
  for (const v1::PlacementReason& reason : route.reasons()) {
    std::printf("%-24s %8llu %8llu %8llu %10.4f %10.4f %10.4f %10.4f\n", reason.worker_id().c_str(),
                static_cast<unsigned long long>(reason.local_tokens()),
                static_cast<unsigned long long>(reason.pull_tokens()),
                static_cast<unsigned long long>(reason.compute_tokens()), reason.compute_seconds(),
                reason.load_seconds(), reason.queue_seconds(), reason.total_seconds());
  }
}

absl::StatusOr<int> Run(const LookupFlags& flags) {
  const absl::StatusOr<CacheIdentity> identity = ReadIdentityFile(flags.identity);
  if (!identity.ok()) return identity.status();
  const absl::StatusOr<LossyFormats> accepted = ParseAccepted(flags.accept);
  if (!accepted.ok()) return accepted.status();
  const absl::StatusOr<std::vector<uint32_t>> tokens = ReadTokensFile(flags.tokens_file);
  if (!tokens.ok()) return tokens.status();
  absl::StatusOr<std::unique_ptr<Client>> client = ConnectCluster(flags.cluster);
  if (!client.ok()) return client.status();
  const absl::StatusOr<v1::RouteResponse> route =
      (*client)->Route(*identity, *tokens, {.worker_id = "", .top_k = 64, .accepted = *accepted, .lookup_only = true});
  if (!route.ok()) return route.status();
  if (flags.json) {
    std::printf("%s\n", ToJson(*route, tokens->size()).dump(2).c_str());
  } else {
    Print(*route, tokens->size());
  }
  return 0;
}

}  // namespace

void AddLookupCommand(CLI::App& app, RunCommand& run) {
  auto flags = std::make_shared<LookupFlags>();
  CLI::App* command = app.add_subcommand("lookup", "Show who holds a prompt's prefix, and where it would run");
  AddClusterFlags(*command, flags->cluster, /*required=*/true);
  command->add_option("--identity", flags->identity, "JSON file of the cache identity")->required();
  command->add_option("--tokens-file", flags->tokens_file, "Token ids, separated by white space or commas")->required();
  AddAcceptFlag(*command, flags->accept);
  command->add_flag("--json", flags->json, "One JSON object on standard output");
  command->callback([flags, &run] { run = [flags] { return Run(*flags); }; });
}

}  // namespace kvmesh
