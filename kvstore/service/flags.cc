#include "kvstore/service/flags.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

namespace kvmesh {
namespace {

constexpr char kConfigFlag[] = "--config";

void WriteUsageError(const CLI::App& app, std::string message, std::ostream& err) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  err << (app.get_name().empty() ? "kvmesh" : app.get_name()) << ": " << message << " (--help lists the flags)\n";
  err.flush();
}

// Help shows the value that each flag has before the parse.
void ShowDefaults(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    option->capture_default_str();
    if (option->get_default_str() == "[]") option->default_str("");  // an empty list
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) ShowDefaults(*command);
}

}  // namespace

std::optional<int> TryParseFlags(CLI::App& app, int argc, const char* const* argv, std::ostream& out,
                                 std::ostream& err) {
  ShowDefaults(app);
  app.set_config(kConfigFlag, "", "File with more flags, one `flag = value` a line");
  app.allow_config_extras(CLI::config_extras_mode::error);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success, out, err);
  } catch (const CLI::Error& error) {
    WriteUsageError(app, error.what(), err);
    return kUsageExitCode;
  }
  return std::nullopt;
}

void ParseFlags(CLI::App& app, int argc, const char* const* argv) {
  if (const std::optional<int> code = TryParseFlags(app, argc, argv, std::cout, std::cerr)) std::exit(*code);
}

void ExitOnUsageError(const CLI::App& app, const absl::Status& status) {
  if (status.ok()) return;
  WriteUsageError(app, std::string(status.message()), std::cerr);
  std::exit(kUsageExitCode);
}

}  // namespace kvmesh
