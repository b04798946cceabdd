// Which callers are the cluster's own: some calls are for its programs and operators, not for tenants.
#ifndef KVMESH_KVSTORE_SERVICE_MEMBERS_H_
#define KVMESH_KVSTORE_SERVICE_MEMBERS_H_

#include <grpcpp/server_context.h>

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kvstore/base/status.h"
#include "kvstore/service/tls.h"

namespace kvmesh {

// Common names in the certificates of members; empty: every certificate is taken for one.
using MemberNames = std::vector<std::string>;

// Adds --member-cn, bound to `names`, which must outlive the parse.
void AddMemberFlag(CLI::App& app, MemberNames& names);

// INVALID_ARGUMENT naming the flag: an empty name, or names without TLS.
absl::Status ValidateMembers(const MemberNames& names, const TlsOptions& tls);

// Says on the log, once at start, that tenants may make members' calls: TLS is on and no name is given.
void WarnWithoutMembers(absl::string_view component, const MemberNames& names, const TlsOptions& tls);

// OK without TLS (one trusted user), without names, and for a caller whose certificate bears one of them.
// PERMISSION_DENIED: another caller. UNAUTHENTICATED: as PeerTenant.
absl::Status CheckMember(const grpc::ServerContextBase& context, const MemberNames& names, const TlsOptions& tls);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_SERVICE_MEMBERS_H_
