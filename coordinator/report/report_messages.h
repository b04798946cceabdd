// Report messages in the coordinator's own types.
#ifndef KVMESH_COORDINATOR_REPORT_REPORT_MESSAGES_H_
#define KVMESH_COORDINATOR_REPORT_REPORT_MESSAGES_H_

#include <optional>

#include "coordinator/prefix_index/prefix_index.h"
#include "coordinator/registry/worker_entry.h"
#include "kvmesh/v1/coordinator.pb.h"
#include "kvstore/base/status.h"

namespace kvmesh {

// nullopt: unspecified, or a set that this version does not know.
std::optional<IndexSet> FromWire(v1::BlockSet set);
v1::BlockSet ToWire(IndexSet set);

// Views `event`'s keys in place. INVALID_ARGUMENT naming the field.
absl::StatusOr<StoredRun> FromWire(const v1::StoredEvent& event);
// INVALID_ARGUMENT naming the field.
absl::StatusOr<SetSummary> FromWire(const v1::DigestEvent& event);
// INVALID_ARGUMENT naming the field: lengths only, see WorkerDescription::Validate.
absl::StatusOr<WorkerDescription> FromWire(const v1::WorkerInfo& info);

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_REPORT_REPORT_MESSAGES_H_
