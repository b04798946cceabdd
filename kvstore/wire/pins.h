// Names and lives of pins: as callers choose them, and as coordinators pass them on to workers.
#ifndef KVMESH_KVSTORE_WIRE_PINS_H_
#define KVMESH_KVSTORE_WIRE_PINS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kvstore/base/status.h"

namespace kvmesh {

inline constexpr size_t kMaxPinIdBytes = 128;
inline constexpr absl::Duration kMaxPinTime = absl::Hours(24);

// INVALID_ARGUMENT naming pin_id: not 1 to kMaxPinIdBytes.
absl::Status CheckPinId(absl::string_view pin_id);
// INVALID_ARGUMENT naming ttl_ms: not 1 ms to kMaxPinTime.
absl::StatusOr<absl::Duration> PinTime(uint64_t ttl_ms);

// The id under which a worker keeps a tenant's pin: 32 hex digits that stand for the tenant, none without TLS, then a
// colon and the pin's own id. Pins of two tenants never share one. REQUIRES: CheckPinId(pin_id).ok().
std::string PinIdOfTenant(const std::optional<std::string>& tenant, absl::string_view pin_id);
// INVALID_ARGUMENT naming pin_id: not of a length that PinIdOfTenant gives.
absl::Status CheckPinIdOfTenant(absl::string_view id);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_WIRE_PINS_H_
