// absl::Status inside, grpc::Status on the wire: the codes are the same numbers.
#ifndef KVMESH_KVSTORE_SERVICE_GRPC_STATUS_H_
#define KVMESH_KVSTORE_SERVICE_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace kvmesh {

// A message travels in one HTTP/2 header, which has a limit: longer ones are cut.
inline constexpr size_t kMaxStatusMessageBytes = 2048;

// Same code and message.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Same code and message; a code that absl does not know becomes UNKNOWN.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_SERVICE_GRPC_STATUS_H_
