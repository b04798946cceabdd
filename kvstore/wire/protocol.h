// The version of the services that this tree speaks.
#ifndef KVMESH_KVSTORE_WIRE_PROTOCOL_H_
#define KVMESH_KVSTORE_WIRE_PROTOCOL_H_

#include <cstdint>

namespace kvmesh {

// Exchanged when a worker registers; the lower one of both sides is spoken.
inline constexpr uint32_t kProtocolVersion = 1;

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_WIRE_PROTOCOL_H_
