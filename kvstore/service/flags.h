// Command lines of the programs: one way to parse, one way to fail.
#ifndef KVMESH_KVSTORE_SERVICE_FLAGS_H_
#define KVMESH_KVSTORE_SERVICE_FLAGS_H_

#include <CLI/App.hpp>
#include <optional>
#include <ostream>

#include "absl/status/status.h"

namespace kvmesh {

// Exit code of a wrong command line or configuration.
inline constexpr int kUsageExitCode = 2;

// Adds `--config FILE` (TOML or INI lines `flag = value`; the command line wins over it; unknown names are errors) and
// parses. Prints help and exits 0 for --help. A wrong command line or file prints one line that names the flag to
// standard error and exits 2.
void ParseFlags(CLI::App& app, int argc, const char* const* argv);

// The same without leaving: nullopt when the program should go on, else the exit code, after writing to `out` or `err`.
std::optional<int> TryParseFlags(CLI::App& app, int argc, const char* const* argv, std::ostream& out,
                                 std::ostream& err);

// Ends the program as ParseFlags does when `status` is not OK: for flags that are checked after the parse.
void ExitOnUsageError(const CLI::App& app, const absl::Status& status);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_SERVICE_FLAGS_H_
