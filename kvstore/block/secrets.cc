#include "kvstore/block/secrets.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kvstore/base/check.h"
#include "kvstore/block/sha256.h"

namespace kvmesh {
namespace {

constexpr absl::string_view kTenantLabel = "kvmesh/1 tenant";
constexpr absl::string_view kRootLabel = "kvmesh/1 root";
constexpr absl::string_view kTicketLabel = "kvmesh/1 ticket";

}  // namespace

Digest32 Sha256(absl::string_view data) {
  Digest32 digest;
  Sha256Stream stream;
  stream.Update(data.data(), data.size());
  stream.Final(digest.bytes.data());
  return digest;
}

Digest32 HmacSha256(absl::string_view key, absl::string_view data) {
  Digest32 mac;
  unsigned int length = 0;
  const char* key_bytes = key.empty() ? "" : key.data();
  const unsigned char* got =
      HMAC(EVP_sha256(), key_bytes, static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(data.data()),
           data.size(), mac.bytes.data(), &length);
  // Fails only without memory or without SHA-256 in the library; a wrong MAC must never be used.
  KVMESH_CHECK(got != nullptr && length == mac.bytes.size(), "HMAC-SHA-256 failed");
  return mac;
}

bool ConstantTimeEqual(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

TenantSecret DeriveTenantSecret(absl::string_view cluster_secret, absl::string_view tenant) {
  return TenantSecret{HmacSha256(cluster_secret, absl::StrCat(kTenantLabel, tenant)).bytes};
}

RootKey DeriveRoot(const TenantSecret& tenant_secret, const Fingerprint& fingerprint) {
  const Digest32 mac = HmacSha256(tenant_secret.view(), absl::StrCat(kRootLabel, fingerprint.view()));
  RootKey root;
  std::memcpy(root.bytes.data(), mac.bytes.data(), root.bytes.size());
  return root;
}

TicketKey DeriveTicketKey(absl::string_view cluster_secret) {
  return TicketKey{HmacSha256(cluster_secret, kTicketLabel).bytes};
}

absl::StatusOr<std::string> ReadSecretFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("secret file ", path));
  std::string secret(kMaxSecretFileBytes + 1, '\0');
  size_t size = 0;
  int error = 0;
  while (size < secret.size()) {
    const ssize_t got = read(fd, secret.data() + size, secret.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  close(fd);
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("secret file ", path));
  if (size > kMaxSecretFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("secret file ", path, ": larger than the limit of ", kMaxSecretFileBytes, " bytes"));
  }
  secret.resize(size);
  return secret;
}

}  // namespace kvmesh
