// What subcommands read: token lists, identities, and how to reach a cluster.
#ifndef KVMESH_CLIENT_CLI_INPUTS_H_
#define KVMESH_CLIENT_CLI_INPUTS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/client.h"
#include "kernels/layout.h"
#include "kvstore/base/status.h"
#include "kvstore/block/cache_identity.h"
#include "kvstore/block/lossy_formats.h"

namespace kvmesh {

// Whole files are read up to this size.
inline constexpr size_t kMaxInputBytes = size_t{64} << 20;

// INVALID_ARGUMENT naming the flag and the path: it can't be read, or is larger than kMaxInputBytes.
absl::StatusOr<std::string> ReadInputFile(const std::string& path, absl::string_view flag);

// Ids separated by white space or commas. INVALID_ARGUMENT naming the flag and the word: not a number below 2^32, more
// than kMaxPromptTokens, or none.
absl::StatusOr<std::vector<uint32_t>> ParseTokens(absl::string_view text, absl::string_view flag);

// The tokens of --tokens-file. Errors of both above.
absl::StatusOr<std::vector<uint32_t>> ReadTokensFile(const std::string& path);

// The format that --kv-format names. INVALID_ARGUMENT naming the flag.
absl::StatusOr<KvFormat> ParseFormatName(const std::string& name);

absl::StatusOr<CacheIdentity> ReadIdentityFile(const std::string& path);

// --accept: names of lossy formats. INVALID_ARGUMENT naming the one that is none.
void AddAcceptFlag(CLI::App& app, std::vector<std::string>& names);
absl::StatusOr<LossyFormats> ParseAccepted(const std::vector<std::string>& names);

// --coordinator and the TLS flags.
struct ClusterFlags {
  std::vector<std::string> coordinators;
  TlsOptions tls;
};
void AddClusterFlags(CLI::App& app, ClusterFlags& flags, bool required);
absl::StatusOr<std::unique_ptr<Client>> ConnectCluster(const ClusterFlags& flags);

}  // namespace kvmesh

#endif  // KVMESH_CLIENT_CLI_INPUTS_H_
