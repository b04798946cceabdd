#include "kvstore/service/members.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kvstore/service/log.h"

namespace kvmesh {

void AddMemberFlag(CLI::App& app, MemberNames& names) {
  app.add_option("--member-cn", names,
                 "Common names in certificates of the cluster's programs and operators; all others may neither report, "
                 "send heartbeats, drain, list workers nor read DebugState (default: any may, logged)")
      ->delimiter(',')
      ->group("TLS");
}

absl::Status ValidateMembers(const MemberNames& names, const TlsOptions& tls) {
  if (names.empty()) return absl::OkStatus();
  if (tls.insecure) return absl::InvalidArgumentError("--member-cn: can't be given together with --insecure");
  if (std::find(names.begin(), names.end(), "") != names.end()) {
    return absl::InvalidArgumentError("--member-cn: a name is empty");
  }
  return absl::OkStatus();
}

void WarnWithoutMembers(absl::string_view component, const MemberNames& names, const TlsOptions& tls) {
  if (tls.insecure || !names.empty()) return;
  Log(LogLevel::kWarning, component,
      "no --member-cn: every certificate may make the calls of the cluster's own programs and operators");
}

absl::Status CheckMember(const grpc::ServerContextBase& context, const MemberNames& names, const TlsOptions& tls) {
  if (tls.insecure || names.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> name = PeerTenant(context);
  if (!name.ok()) return name.status();
  if (std::find(names.begin(), names.end(), *name) != names.end()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("certificate of ", *name, ": not of the cluster's own programs and operators (--member-cn)"));
}

}  // namespace kvmesh
