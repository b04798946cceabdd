#include "client/cli/inputs.h"

#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/kv_format.h"
#include "kvstore/block/key_chain.h"

namespace kvmesh {

absl::StatusOr<std::string> ReadInputFile(const std::string& path, absl::string_view flag) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot read ", path));
  std::string bytes(kMaxInputBytes + 1, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (in.bad()) return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot read ", path));
  bytes.resize(static_cast<size_t>(in.gcount()));
  if (bytes.size() > kMaxInputBytes) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, " is larger than ", kMaxInputBytes, " bytes"));
  }
  return bytes;
}

absl::StatusOr<std::vector<uint32_t>> ParseTokens(absl::string_view text, absl::string_view flag) {
  std::vector<uint32_t> tokens;
  for (const absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(", \t\r\n"), absl::SkipEmpty())) {
    uint32_t token = 0;
    if (!absl::SimpleAtoi(word, &token)) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": \"", word.substr(0, 32), "\" is not a token id"));
    }
    if (tokens.size() == kMaxPromptTokens) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": more than ", kMaxPromptTokens, " tokens"));
    }
    tokens.push_back(token);
  }
  if (tokens.empty()) return absl::InvalidArgumentError(absl::StrCat(flag, ": no tokens"));
  return tokens;
}

absl::StatusOr<std::vector<uint32_t>> ReadTokensFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadInputFile(path, "--tokens-file");
  if (!text.ok()) return text.status();
  return ParseTokens(*text, "--tokens-file");
}

absl::StatusOr<KvFormat> ParseFormatName(const std::string& name) {
  if (const std::optional<KvFormat> format = ParseKvFormat(name)) return *format;
  return absl::InvalidArgumentError(absl::StrCat("--kv-format: \"", name, "\" is no format"));
}

absl::StatusOr<CacheIdentity> ReadIdentityFile(const std::string& path) {
  const absl::StatusOr<std::string> json = ReadInputFile(path, "--identity");
  if (!json.ok()) return json.status();
  absl::StatusOr<CacheIdentity> identity = ParseIdentityJson(*json);
  if (identity.ok()) return identity;
  return absl::InvalidArgumentError(absl::StrCat("--identity: ", path, ": ", identity.status().message()));
}

void AddAcceptFlag(CLI::App& app, std::vector<std::string>& names) {
  app.add_option("--accept", names, "Lossy formats whose copies count too: fp8, int8, ... (default: exact ones only)")
      ->delimiter(',');
}

absl::StatusOr<LossyFormats> ParseAccepted(const std::vector<std::string>& names) {
  LossyFormats accepted;
  for (const std::string& name : names) {
    const std::optional<KvFormat> format = ParseKvFormat(name);
    if (!format) return absl::InvalidArgumentError(absl::StrCat("--accept: \"", name, "\" is no format"));
    accepted.Add(*format);
  }
  return accepted;
}

void AddClusterFlags(CLI::App& app, ClusterFlags& flags, bool required) {
  app.add_option("--coordinator", flags.coordinators, "host:port of each coordinator")
      ->delimiter(',')
      ->required(required);
  AddTlsFlags(app, flags.tls);
}

absl::StatusOr<std::unique_ptr<Client>> ConnectCluster(const ClusterFlags& flags) {
  return Client::Create({.coordinators = flags.coordinators, .tls = flags.tls, .tenant_secret = std::nullopt});
}

}  // namespace kvmesh
