// kvmesh: the command line of a cluster. Each subcommand is one file.
#include <iostream>

#include "client/cli/command.h"
#include "kvstore/service/flags.h"

namespace kvmesh {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("kvmesh: keys, lookups, generation and replays on a K/V-cache cluster.");
  app.name("kvmesh");
  app.require_subcommand(1);
  RunCommand run;
  AddEvalCommand(app, run);
  AddKeyCommand(app, run);
  AddLookupCommand(app, run);
  AddGenerateCommand(app, run);
  AddPlanCommand(app, run);
  AddReplayCommand(app, run);
  AddStatsCommand(app, run);
  AddUpCommand(app, run);
  ParseFlags(app, argc, argv);
  const absl::StatusOr<int> code = run();
  if (code.ok()) return *code;
  std::cerr << "kvmesh: " << code.status().message() << "\n";
  return absl::IsInvalidArgument(code.status()) ? kUsageExitCode : 1;
}

}  // namespace
}  // namespace kvmesh

int main(int argc, char** argv) { return kvmesh::Main(argc, argv); }
