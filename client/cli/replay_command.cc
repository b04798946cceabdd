// kvmesh replay: hit rates of a trace on a cluster of a given shape.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/end_signal.h"
#include "client/cli/progress_line.h"
#include "client/cli/replay.h"
#include "client/cli/trace.h"
#include "kvstore/service/log.h"
#include "kvstore/service/signals.h"
#include "worker/server/worker_metrics.h"

namespace kvmesh {
namespace {

// Plus a signal's number: the exit code of a program that ended itself because of it, as in shells.
constexpr int kSignalExitCode = 128;

struct ReplayFlags {
  std::string trace;
  std::string format;
  std::string capacity = "0";
  std::string route = "placement";
  bool json = false;
  ReplayOptions options;
};

// DEVICE[,HOST[,DISK]]: 0 is unlimited, - and what is left out are none.
absl::Status ParseCapacity(const std::string& text, ReplayOptions& options) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  if (parts.size() > 3) return absl::InvalidArgumentError("--capacity-blocks: at most DEVICE,HOST,DISK");
  options.capacity = {};
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == "-") continue;
    uint64_t blocks = 0;
    if (!absl::SimpleAtoi(parts[i], &blocks)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--capacity-blocks: \"", parts[i], "\" is neither a number of blocks nor -"));
    }
    options.capacity[i] = blocks;
  }
  return absl::OkStatus();
}

double HitRate(const ReplayResult& result) {
  return result.blocks == 0 ? 0 : static_cast<double>(result.hit_blocks) / static_cast<double>(result.blocks);
}

void PrintJson(const ReplayResult& result) {
  nlohmann::ordered_json out;
  out["requests"] = result.requests;
  out["blocks"] = result.blocks;
  out["hit_blocks"] = result.hit_blocks;
  out["hit_rate"] = HitRate(result);
  for (size_t i = 0; i < kHitSources; ++i) {
    out["hits_by_tier"][std::string(HitSourceName(static_cast<HitSource>(i)))] = result.hits[i];
  }
  out["bytes_verified"] = result.bytes_verified;
  out["mismatches"] = result.mismatches;
  out["seconds"] = result.seconds;
  out["requests_by_worker"] = result.requests_by_worker;
  std::printf("%s\n", out.dump(2).c_str());
}

void Print(const ReplayResult& result) {
  std::printf("%llu requests, %llu blocks, %llu hits (%.4f) in %.1f s\n",
              static_cast<unsigned long long>(result.requests), static_cast<unsigned long long>(result.blocks),
              static_cast<unsigned long long>(result.hit_blocks), HitRate(result), result.seconds);
  for (size_t i = 0; i < kHitSources; ++i) {
    std::printf("  %-8s %llu\n", std::string(HitSourceName(static_cast<HitSource>(i))).c_str(),
                static_cast<unsigned long long>(result.hits[i]));
  }
  for (const auto& [worker, requests] : result.requests_by_worker) {
    std::printf("  %s served %llu requests\n", worker.c_str(), static_cast<unsigned long long>(requests));
  }
  std::printf("%llu bytes verified, %llu blocks differ\n", static_cast<unsigned long long>(result.bytes_verified),
              static_cast<unsigned long long>(result.mismatches));
}

absl::StatusOr<int> Run(ReplayFlags& flags) {
  KVMESH_RETURN_IF_ERROR(ParseCapacity(flags.capacity, flags.options));
  flags.options.round_robin = flags.route == "round-robin";
  const absl::StatusOr<std::vector<TraceRequest>> trace = ReadMooncakeTrace(flags.trace);
  if (!trace.ok()) return trace.status();
  if (isatty(STDERR_FILENO) != 0) flags.options.progress = ProgressLine("requests");
  SetMinLogLevel(LogLevel::kError);
  BlockSignals();
  int ended_by = 0;
  flags.options.cancelled = [&ended_by] {
    ended_by = AwaitEndSignal(absl::ZeroDuration());
    return ended_by != 0;
  };
  const absl::StatusOr<ReplayResult> result = Replay(*trace, flags.options);
  if (absl::IsCancelled(result.status()) && ended_by != 0) {
    std::fprintf(stderr, "kvmesh: %s\n", std::string(result.status().message()).c_str());
    return kSignalExitCode + ended_by;
  }
  if (!result.ok()) return result.status();
  flags.json ? PrintJson(*result) : Print(*result);
  return result->mismatches == 0 ? 0 : 1;
}

}  // namespace

void AddReplayCommand(CLI::App& app, RunCommand& run) {
  auto flags = std::make_shared<ReplayFlags>();
  CLI::App* command = app.add_subcommand("replay", "Play a trace through a cluster in this process");
  command->add_option("--trace", flags->trace, "Trace file")->required();
  command->add_option("--format", flags->format, "mooncake")->required()->check(CLI::IsMember({"mooncake"}));
  command->add_option("--workers", flags->options.workers, "Workers of the cluster");
  command->add_option("--capacity-blocks", flags->capacity, "DEVICE[,HOST[,DISK]] blocks of each; 0 unlimited, - none");
  command->add_option("--policy", flags->options.policy, "Eviction policy")->check(CLI::IsMember({"lru"}));
  command->add_option("--route", flags->route, "placement or round-robin")
      ->check(CLI::IsMember({"placement", "round-robin"}));
  command->add_option("--block-bytes", flags->options.block_bytes, "Bytes of a block");
  command->add_flag("--verify", flags->options.verify, "Check every byte of every hit");
  command->add_flag("--json", flags->json, "One JSON object on standard output");
  command->callback([flags, &run] { run = [flags] { return Run(*flags); }; });
}

}  // namespace kvmesh
