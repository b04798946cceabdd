#include "coordinator/server/admin_calls.h"

#include "absl/strings/str_cat.h"
#include "coordinator/report/report_messages.h"
#include "coordinator/server/route_call.h"
#include "kvstore/block/ticket.h"
#include "kvstore/wire/pins.h"
#include "kvstore/wire/wire.h"

namespace kvmesh {
namespace {

absl::Status CheckWorkerId(const std::string& id) {
  if (id.empty() || id.size() > kMaxWorkerIdBytes) return absl::InvalidArgumentError("worker_id: not 1 to 128 bytes");
  return absl::OkStatus();
}

v1::WorkerStatus::State ToWire(WorkerState state) {
  switch (state) {
    case WorkerState::kWarming:
      return v1::WorkerStatus::STATE_WARMING;
    case WorkerState::kReady:
      return v1::WorkerStatus::STATE_READY;
    case WorkerState::kDraining:
      return v1::WorkerStatus::STATE_DRAINING;
    case WorkerState::kLost:
      break;
  }
  return v1::WorkerStatus::STATE_LOST;
}

}  // namespace

absl::Status AdminCalls::Heartbeat(const v1::HeartbeatRequest& request, v1::HeartbeatResponse& response) const {
  KVMESH_RETURN_IF_ERROR(CheckWorkerId(request.worker_id()));
  const auto incarnation = FixedFromBytes<Incarnation>(request.incarnation(), "incarnation");
  if (!incarnation.ok()) return incarnation.status();
  response.set_interval_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(core.options.registry.heartbeat_interval)));
  return core.registry.Heartbeat(request.worker_id(), *incarnation,
                                 {.queued_tokens = request.queued_tokens(),
                                  .running_requests = request.running_requests(),
                                  .draining = request.draining(),
                                  .prefill_tokens_per_second = request.prefill_tokens_per_second()});
}

absl::Status AdminCalls::Complete(const v1::CompleteRequest& request) const {
  const auto id = FixedFromBytes<PlacementId>(request.placement_id(), "placement_id");
  if (!id.ok()) return id.status();
  const absl::StatusOr<InFlightPlacement> placement = core.placer.Complete(*id);
  if (!placement.ok()) return placement.status();
  core.counters.CountCompletion(*placement, request.hits(), request.failed());
  return absl::OkStatus();
}

absl::Status AdminCalls::ListWorkers(v1::ListWorkersResponse& response) const {
  const absl::Time now = core.registry.Now();
  for (const auto& worker : core.registry.List()) {
    v1::WorkerStatus& status = *response.add_workers();
    status.mutable_info()->ParseFromString(worker->description().registration);
    status.mutable_info()->set_draining(worker->draining());
    status.set_state(ToWire(worker->state()));
    status.set_applied_sequence(worker->progress.applied_sequence);
    status.set_heartbeat_age_ms(
        static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(now - worker->last_heartbeat()))));
    status.set_queued_tokens(worker->queued_tokens());
    status.set_resyncs(worker->progress.resyncs);
    if (worker->gone()) continue;
    status.set_device_blocks(core.index.Count(worker->slot(), IndexSet::kDevice));
    status.set_memory_blocks(core.index.Count(worker->slot(), IndexSet::kMemory));
    status.set_disk_blocks(core.index.Count(worker->slot(), IndexSet::kDisk));
    for (const IndexSet set : kAllIndexSets) {
      const absl::StatusOr<SetSummary> digest = core.index.Digest(worker->slot(), set);
      if (!digest.ok()) continue;
      v1::DigestEvent& out = *status.add_digests();
      out.set_set(kvmesh::ToWire(set));
      out.set_sum(digest->sum.ToString());
      out.set_count(digest->count);
    }
  }
  return absl::OkStatus();
}

absl::Status AdminCalls::Drain(const v1::DrainRequest& request) const {
  KVMESH_RETURN_IF_ERROR(CheckWorkerId(request.worker_id()));
  KVMESH_RETURN_IF_ERROR(core.registry.OrderDrain(request.worker_id(), request.draining()));
  // The worker hears of it too, so that other coordinators learn it from its heartbeats; placing stops in any case.
  v1::Command command;
  command.mutable_drain()->set_draining(request.draining());
  core.commands.Send(request.worker_id(), std::move(command), core.options.command_timeout,
                     [](const CommandOutcome&) {});
  return absl::OkStatus();
}

absl::Status AdminCalls::Pin(const v1::PinRequest& request, v1::PinResponse& response) const {
  KVMESH_RETURN_IF_ERROR(CheckPinId(request.pin_id()));
  KVMESH_RETURN_IF_ERROR(PinTime(request.ttl_ms()).status());
  DecodedPrompt prompt;
  KVMESH_RETURN_IF_ERROR(DecodePrefix(request.prefix(), tenant, core.identities, prompt));
  const auto holders = core.router.Holders({.root = prompt.root, .keys = prompt.keys});
  if (holders.empty()) return absl::NotFoundError("prefix: nobody holds it");
  v1::Command command;
  command.mutable_pin()->set_pin_id(PinIdOfTenant(tenant, request.pin_id()));
  command.mutable_pin()->set_root(prompt.root.ToString());
  command.mutable_pin()->set_block_keys(std::string(KeysToBytes(prompt.keys)));
  command.mutable_pin()->set_ttl_ms(request.ttl_ms());
  const absl::StatusOr<uint64_t> pinned = SendToAll(holders, command);
  if (!pinned.ok()) {
    v1::Command undo;
    undo.mutable_unpin()->set_pin_id(command.pin().pin_id());
    for (const auto& holder : holders) {
      core.commands.Send(holder->description().id, undo, core.options.command_timeout, [](const CommandOutcome&) {});
    }
    return pinned.status();
  }
  if (*pinned == 0) return absl::NotFoundError("prefix: nobody holds it any more");
  response.set_pinned_blocks(*pinned);
  return absl::OkStatus();
}

absl::Status AdminCalls::Unpin(const v1::UnpinRequest& request) const {
  KVMESH_RETURN_IF_ERROR(CheckPinId(request.pin_id()));
  v1::Command command;
  command.mutable_unpin()->set_pin_id(PinIdOfTenant(tenant, request.pin_id()));
  return SendToAll(core.registry.Table()->workers, command).status();
}

absl::Status AdminCalls::Prefetch(const v1::PrefetchRequest& request, v1::PrefetchResponse& response) const {
  KVMESH_RETURN_IF_ERROR(CheckWorkerId(request.worker_id()));
  DecodedPrompt prompt;
  KVMESH_RETURN_IF_ERROR(DecodePrefix(request.prefix(), tenant, core.identities, prompt));
  RouteAnswer answer;
  KVMESH_RETURN_IF_ERROR(core.router.PlanPrefetch({.prefix = {.root = prompt.root, .keys = prompt.keys},
                                                   .block_tokens = prompt.block_tokens,
                                                   .worker_id = request.worker_id()},
                                                  answer));
  if (answer.sources.empty()) return absl::OkStatus();  // it is all there
  v1::Command command;
  command.mutable_prefetch()->set_root(prompt.root.ToString());
  command.mutable_prefetch()->set_block_keys(std::string(KeysToBytes(prompt.keys)));
  EncodeSources(answer, *command.mutable_prefetch()->mutable_sources());
  const std::shared_ptr<WorkerEntry> worker = core.registry.Find(request.worker_id());
  if (worker == nullptr) return absl::NotFoundError("worker_id: no such worker");
  const absl::StatusOr<uint64_t> fetched = SendToAll({worker}, command);
  if (!fetched.ok()) return fetched.status();
  response.set_blocks(*fetched);
  return absl::OkStatus();
}

absl::Status AdminCalls::ClearIdentity(const v1::ClearIdentityRequest& request,
                                       v1::ClearIdentityResponse& response) const {
  if (!request.has_identity()) return absl::InvalidArgumentError("identity: missing");
  const absl::StatusOr<ResolvedIdentity> identity = core.identities.Resolve(request.identity(), tenant);
  if (!identity.ok()) return identity.status();
  v1::Command command;
  command.mutable_clear_identity()->set_root(identity->root.ToString());
  const absl::StatusOr<uint64_t> erased = SendToAll(core.registry.Table()->workers, command);
  if (!erased.ok()) return erased.status();
  response.set_erased_blocks(*erased);
  return absl::OkStatus();
}

absl::Status AdminCalls::Stats(v1::CoordinatorStatsResponse& response) const {
  uint64_t ready = 0;
  for (const auto& worker : core.registry.Table()->workers) ready += worker->state() == WorkerState::kReady;
  response.set_workers_ready(ready);
  response.set_distinct_blocks(core.index.Stats().blocks);
  response.set_routes(core.counters.routes());
  response.set_requested_tokens(core.counters.requested_tokens());
  response.set_predicted_hit_tokens(core.counters.predicted_hit_tokens());
  const std::array<uint64_t, 4> hits = core.counters.actual_hit_tokens();
  response.set_actual_hit_tokens(hits[0] + hits[1] + hits[2] + hits[3]);
  response.mutable_hits()->set_device(hits[0]);
  response.mutable_hits()->set_host(hits[1]);
  response.mutable_hits()->set_disk(hits[2]);
  response.mutable_hits()->set_peer(hits[3]);
  response.set_placements_in_flight(core.placer.Stats().in_flight);
  double resyncs = 0;
  for (const ResyncReason reason : kAllResyncReasons) resyncs += core.report_metrics.resyncs(reason).Value();
  response.set_resyncs(static_cast<uint64_t>(resyncs));
  response.set_coordinator_incarnation(core.incarnation.ToString());
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> AdminCalls::SendToAll(const std::vector<std::shared_ptr<WorkerEntry>>& workers,
                                               const v1::Command& command) const {
  std::vector<std::pair<std::string, v1::Command>> commands;
  for (const auto& worker : workers) commands.emplace_back(worker->description().id, command);
  const std::vector<CommandOutcome> outcomes =
      core.commands.SendAll(std::move(commands), core.options.command_timeout, cancelled);
  uint64_t blocks = 0;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const CommandOutcome& outcome = outcomes[i];
    blocks += outcome.blocks;
    if (outcome.status.ok() || absl::IsNotFound(outcome.status)) continue;
    return absl::Status(outcome.status.code(),
                        absl::StrCat("worker ", workers[i]->description().id, ": ", outcome.status.message()));
  }
  return blocks;
}

}  // namespace kvmesh
