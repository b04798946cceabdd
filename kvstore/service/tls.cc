#include "kvstore/service/tls.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
struct OpenSslFree {
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

absl::StatusOr<File> Open(absl::string_view flag, const std::string& path) {
  File file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat(flag, " ", path));
  return file;
}

absl::Status Bad(absl::string_view flag, const std::string& path, absl::string_view what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": ", what));
}

// Never asks at the terminal.
int NoPassphrase(char*, int, int, void*) { return 0; }

// gRPC reports a bad file only by failed handshakes, so the files are checked here first.
absl::Status CheckFiles(const TlsOptions& options) {
  absl::StatusOr<File> cert_file = Open("--tls-cert", options.cert_file);
  if (!cert_file.ok()) return cert_file.status();
  const std::unique_ptr<X509, OpenSslFree> cert(PEM_read_X509(cert_file->get(), nullptr, NoPassphrase, nullptr));
  if (cert == nullptr) return Bad("--tls-cert", options.cert_file, "not a PEM certificate");

  absl::StatusOr<File> key_file = Open("--tls-key", options.key_file);
  if (!key_file.ok()) return key_file.status();
  const std::unique_ptr<EVP_PKEY, OpenSslFree> key(
      PEM_read_PrivateKey(key_file->get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) return Bad("--tls-key", options.key_file, "not a PEM private key without a passphrase");
  if (X509_check_private_key(cert.get(), key.get()) != 1) {
    return Bad("--tls-key", options.key_file, "not the key of the certificate in --tls-cert");
  }

  absl::StatusOr<File> ca_file = Open("--tls-ca", options.ca_file);
  if (!ca_file.ok()) return ca_file.status();
  const std::unique_ptr<X509, OpenSslFree> ca(PEM_read_X509(ca_file->get(), nullptr, NoPassphrase, nullptr));
  if (ca == nullptr) return Bad("--tls-ca", options.ca_file, "not a PEM certificate");
  return absl::OkStatus();
}

std::shared_ptr<grpc::experimental::CertificateProviderInterface> WatchFiles(const TlsOptions& options) {
  const int64_t seconds = std::clamp<int64_t>(absl::ToInt64Seconds(options.reload_interval), 1, 86400);
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      options.key_file, options.cert_file, options.ca_file, static_cast<unsigned int>(seconds));
}

}  // namespace

void AddTlsFlags(CLI::App& app, TlsOptions& options) {
  app.add_option("--tls-cert", options.cert_file, "PEM certificate chain of this process")->group("TLS");
  app.add_option("--tls-key", options.key_file, "PEM private key of --tls-cert, without a passphrase")->group("TLS");
  app.add_option("--tls-ca", options.ca_file, "PEM authorities whose certificates peers must present")->group("TLS");
  app.add_flag("--insecure", options.insecure, "Plain text and no tenants, for one trusted user")->group("TLS");
}

absl::Status ValidateTls(const TlsOptions& options) {
  const std::pair<const char*, const std::string*> files[] = {
      {"--tls-cert", &options.cert_file}, {"--tls-key", &options.key_file}, {"--tls-ca", &options.ca_file}};
  for (const auto& [flag, path] : files) {
    if (options.insecure && !path->empty()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": can't be given together with --insecure"));
    }
    if (!options.insecure && path->empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, ": required (--tls-cert, --tls-key and --tls-ca together, or --insecure)"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const TlsOptions& options) {
  KVMESH_RETURN_IF_ERROR(ValidateTls(options));
  if (options.insecure) return grpc::InsecureServerCredentials();
  KVMESH_RETURN_IF_ERROR(CheckFiles(options));
  grpc::experimental::TlsServerCredentialsOptions tls(WatchFiles(options));
  tls.watch_root_certs();
  tls.watch_identity_key_cert_pairs();
  tls.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(tls);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(const TlsOptions& options) {
  KVMESH_RETURN_IF_ERROR(ValidateTls(options));
  if (options.insecure) return grpc::InsecureChannelCredentials();
  KVMESH_RETURN_IF_ERROR(CheckFiles(options));
  grpc::experimental::TlsChannelCredentialsOptions tls;
  tls.set_certificate_provider(WatchFiles(options));
  tls.watch_root_certs();
  tls.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(tls);
}

absl::StatusOr<std::string> PeerTenant(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth == nullptr) return std::string();
  const std::vector<grpc::string_ref> type = auth->FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  const std::vector<grpc::string_ref> names = auth->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
  const bool tls = !type.empty() && type[0] == GRPC_SSL_TRANSPORT_SECURITY_TYPE;
  if (!tls && names.empty()) return std::string();
  if (names.size() != 1 || names[0].empty()) {
    return absl::UnauthenticatedError("client certificate: must have a common name, the tenant");
  }
  return std::string(names[0].data(), names[0].size());
}

}  // namespace kvmesh
