// What a worker does on a coordinator's order.
#ifndef KVMESH_WORKER_REPORT_COMMAND_HANDLER_H_
#define KVMESH_WORKER_REPORT_COMMAND_HANDLER_H_

#include <cstdint>

#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/base/status.h"

namespace kvmesh {

// Each method carries an order out, blocking as long as that takes, and returns the number of blocks that it concerned
// (pinned, fetched or erased) or the status that goes back to the coordinator. Thread safe: orders run at the same
// time.
class CommandHandler {
 public:
  virtual ~CommandHandler() = default;
  virtual absl::StatusOr<uint64_t> Pin(const v1::PinCommand& command) = 0;
  virtual absl::StatusOr<uint64_t> Unpin(const v1::UnpinCommand& command) = 0;
  virtual absl::StatusOr<uint64_t> Prefetch(const v1::PrefetchCommand& command) = 0;
  virtual absl::StatusOr<uint64_t> ClearIdentity(const v1::ClearIdentityCommand& command) = 0;
  virtual absl::StatusOr<uint64_t> Drain(const v1::DrainCommand& command) = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_REPORT_COMMAND_HANDLER_H_
