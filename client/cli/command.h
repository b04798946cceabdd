// One subcommand of `kvmesh`: it adds its flags, and runs when it was chosen.
#ifndef KVMESH_CLIENT_CLI_COMMAND_H_
#define KVMESH_CLIENT_CLI_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>

#include "kvstore/base/status.h"

namespace kvmesh {

// Set by the chosen subcommand. INVALID_ARGUMENT is wrong usage (exit 2), any other error exits 1. A value is the exit
// code.
using RunCommand = std::function<absl::StatusOr<int>()>;

void AddEvalCommand(CLI::App& app, RunCommand& run);
void AddKeyCommand(CLI::App& app, RunCommand& run);
void AddLookupCommand(CLI::App& app, RunCommand& run);
void AddGenerateCommand(CLI::App& app, RunCommand& run);
void AddPlanCommand(CLI::App& app, RunCommand& run);
void AddReplayCommand(CLI::App& app, RunCommand& run);
void AddStatsCommand(CLI::App& app, RunCommand& run);
void AddUpCommand(CLI::App& app, RunCommand& run);

}  // namespace kvmesh

#endif  // KVMESH_CLIENT_CLI_COMMAND_H_
