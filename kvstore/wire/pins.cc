#include "kvstore/wire/pins.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kvstore/block/secrets.h"

namespace kvmesh {
namespace {

constexpr size_t kTenantBytes = 16;  // of the tenant's digest
constexpr size_t kMaxPrefixBytes = 2 * kTenantBytes + 1;

}  // namespace

absl::Status CheckPinId(absl::string_view pin_id) {
  if (!pin_id.empty() && pin_id.size() <= kMaxPinIdBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("pin_id: ", pin_id.size(), " bytes, must be 1 to ", kMaxPinIdBytes));
}

absl::StatusOr<absl::Duration> PinTime(uint64_t ttl_ms) {
  const auto longest = static_cast<uint64_t>(absl::ToInt64Milliseconds(kMaxPinTime));
  if (ttl_ms >= 1 && ttl_ms <= longest) return absl::Milliseconds(ttl_ms);
  return absl::InvalidArgumentError(absl::StrCat("ttl_ms: ", ttl_ms, ", must be 1 to ", longest));
}

std::string PinIdOfTenant(const std::optional<std::string>& tenant, absl::string_view pin_id) {
  if (!tenant.has_value()) return absl::StrCat(":", pin_id);
  return absl::StrCat(absl::BytesToHexString(Sha256(*tenant).view().substr(0, kTenantBytes)), ":", pin_id);
}

absl::Status CheckPinIdOfTenant(absl::string_view id) {
  constexpr size_t kMaxBytes = kMaxPrefixBytes + kMaxPinIdBytes;
  if (!id.empty() && id.size() <= kMaxBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("pin_id: ", id.size(), " bytes, must be 1 to ", kMaxBytes));
}

}  // namespace kvmesh
