// kvmesh key: one hex key per full block.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/inputs.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/block/secrets.h"

namespace kvmesh {
namespace {

struct KeyFlags {
  std::string identity;
  std::string tokens_file;
  std::string cluster_secret_file;
  std::string tenant_secret_file;
};

absl::StatusOr<TenantSecret> SecretFor(const KeyFlags& flags, const std::string& tenant) {
  if (!flags.tenant_secret_file.empty()) {
    const absl::StatusOr<std::string> bytes = ReadSecretFile(flags.tenant_secret_file);
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--tenant-secret-file: ", bytes.status().message()));
    }
    const auto secret = TenantSecret::FromBytes(*bytes);
    if (!secret) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tenant-secret-file: ", bytes->size(), " bytes, must be ", TenantSecret::kSize));
    }
    return TenantSecret{secret->bytes};
  }
  std::string cluster_secret;
  if (!flags.cluster_secret_file.empty()) {
    absl::StatusOr<std::string> bytes = ReadSecretFile(flags.cluster_secret_file);
    if (!bytes.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--cluster-secret-file: ", bytes.status().message()));
    }
    cluster_secret = *std::move(bytes);
  }
  return DeriveTenantSecret(cluster_secret, tenant);
}

absl::StatusOr<int> Run(const KeyFlags& flags) {
  const absl::StatusOr<CacheIdentity> identity = ReadIdentityFile(flags.identity);
  if (!identity.ok()) return identity.status();
  const absl::StatusOr<std::vector<uint32_t>> tokens = ReadTokensFile(flags.tokens_file);
  if (!tokens.ok()) return tokens.status();
  const absl::StatusOr<TenantSecret> secret = SecretFor(flags, identity->tenant);
  if (!secret.ok()) return secret.status();
  const RootKey root = DeriveRoot(*secret, ComputeFingerprint(*identity));
  for (const BlockKey& key : ComputeBlockKeys(RootAsParent(root), *tokens, identity->block_tokens)) {
    std::printf("%s\n", key.ToHex().c_str());
  }
  return 0;
}

}  // namespace

void AddKeyCommand(CLI::App& app, RunCommand& run) {
  auto flags = std::make_shared<KeyFlags>();
  CLI::App* command = app.add_subcommand("key", "Print the key of each full block, in hex");
  command->add_option("--identity", flags->identity, "JSON file of the cache identity")->required();
  command->add_option("--tokens-file", flags->tokens_file, "Token ids, separated by white space or commas")->required();
  CLI::Option* cluster = command->add_option("--cluster-secret-file", flags->cluster_secret_file, "Raw cluster secret");
  command->add_option("--tenant-secret-file", flags->tenant_secret_file, "Raw tenant secret, 32 bytes")
      ->excludes(cluster);
  command->callback([flags, &run] { run = [flags] { return Run(*flags); }; });
}

}  // namespace kvmesh
