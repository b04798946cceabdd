// Network addresses as flags and configuration spell them.
#ifndef KVMESH_KVSTORE_SERVICE_HOST_PORT_H_
#define KVMESH_KVSTORE_SERVICE_HOST_PORT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "kvstore/base/status.h"

namespace kvmesh {

struct HostPort {
  std::string host;  // a name or an IP address, without brackets
  uint16_t port = 0;

  // host:port, or [host]:port when the host holds a colon.
  std::string ToString() const;

  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// From host:port or [v6]:port. INVALID_ARGUMENT quoting the text: no host, no port, a port that is not decimal digits
// up to 65535, an IPv6 address without brackets, or a character that no address has.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_SERVICE_HOST_PORT_H_
