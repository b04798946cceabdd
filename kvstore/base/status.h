// Error propagation: absl::Status everywhere inside, one macro to pass an error on.
#ifndef KVMESH_KVSTORE_BASE_STATUS_H_
#define KVMESH_KVSTORE_BASE_STATUS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the status of `expr` from the enclosing function unless it is OK.
#define KVMESH_RETURN_IF_ERROR(expr)                 \
  do {                                               \
    absl::Status kvmesh_status_ = (expr);            \
    if (!kvmesh_status_.ok()) return kvmesh_status_; \
  } while (false)

#endif  // KVMESH_KVSTORE_BASE_STATUS_H_
