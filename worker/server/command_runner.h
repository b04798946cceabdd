// Carries out a coordinator's orders on this worker.
#ifndef KVMESH_WORKER_SERVER_COMMAND_RUNNER_H_
#define KVMESH_WORKER_SERVER_COMMAND_RUNNER_H_

#include <functional>

#include "worker/report/command_handler.h"
#include "worker/server/worker_core.h"

namespace kvmesh {

// Why a prefix could not be pinned: NOT_FOUND: a part is held nowhere here, or in no exact copy. RESOURCE_EXHAUSTED:
// the bound of pinned blocks, or no free slot. DEADLINE_EXCEEDED: loading it took too long. DATA_LOSS: a corrupt copy,
// now erased. UNAVAILABLE: a read failed.
absl::Status PinRefusal(MissReason stopped_by, size_t pinned, size_t wanted);

// Thread safe. `core` is not owned; `on_drain` is told of each drain order.
class CommandRunner : public CommandHandler {
 public:
  CommandRunner(WorkerCore& core, std::function<void(bool)> on_drain) : core_(core), on_drain_(std::move(on_drain)) {}

  // Pins the whole prefix or nothing: PinRefusal. RESOURCE_EXHAUSTED: too many pins.
  absl::StatusOr<uint64_t> Pin(const v1::PinCommand& command) override;
  // NOT_FOUND: no such pin.
  absl::StatusOr<uint64_t> Unpin(const v1::UnpinCommand& command) override;
  // Brings as much of the prefix to the device as can be had.
  absl::StatusOr<uint64_t> Prefetch(const v1::PrefetchCommand& command) override;
  absl::StatusOr<uint64_t> ClearIdentity(const v1::ClearIdentityCommand& command) override;
  absl::StatusOr<uint64_t> Drain(const v1::DrainCommand& command) override;

 private:
  WorkerCore& core_;
  const std::function<void(bool)> on_drain_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_SERVER_COMMAND_RUNNER_H_
