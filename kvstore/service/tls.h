// Mutual TLS between the processes of a cluster, and the tenant that a client's certificate names.
#ifndef KVMESH_KVSTORE_SERVICE_TLS_H_
#define KVMESH_KVSTORE_SERVICE_TLS_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>

#include <CLI/App.hpp>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "kvstore/base/status.h"

namespace kvmesh {

// PEM files: a certificate chain (leaf first), its private key without a passphrase, and the authorities trusted for
// peers. Both sides present a certificate; a server's must name the host or IP address that clients dial (SAN).
struct TlsOptions {
  std::string cert_file;
  std::string key_file;
  std::string ca_file;
  bool insecure = false;  // plain text and no tenants; for one trusted user

  // How often files that changed are read again, so that certificates can be renewed in place. At least a second.
  absl::Duration reload_interval = absl::Seconds(30);
};

// Adds --tls-cert, --tls-key, --tls-ca and --insecure, bound to `options`, which must outlive the parse.
void AddTlsFlags(CLI::App& app, TlsOptions& options);

// OK when all three files are given or `insecure` alone. INVALID_ARGUMENT naming the flag.
absl::Status ValidateTls(const TlsOptions& options);

// Credentials that demand a certificate of an authority in `ca_file` from every client. They watch the files with a
// thread: make them once and share them. INVALID_ARGUMENT naming the flag: ValidateTls, a file that is not PEM, or a
// key that is not the certificate's. NOT_FOUND or PERMISSION_DENIED naming the flag: a file that can't be read.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(const TlsOptions& options);

// The client's side, which checks the server's certificate against `ca_file` and the dialled name. Errors and cost as
// for MakeServerCredentials.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(const TlsOptions& options);

// The tenant of a call: the common name of the client's certificate under TLS, empty without TLS (all callers are then
// one trusted user). UNAUTHENTICATED: TLS, but the certificate has no common name.
absl::StatusOr<std::string> PeerTenant(const grpc::ServerContextBase& context);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_SERVICE_TLS_H_
