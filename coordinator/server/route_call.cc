#include "coordinator/server/route_call.h"

#include "coordinator/report/report_messages.h"

namespace kvmesh {
namespace {

// Reused by the routes of one thread, so that few allocate.
struct Scratch {
  DecodedPrompt prompt;
  RouteAnswer answer;
};

void Encode(const RouteAnswer& answer, bool placed, v1::RouteResponse& response) {
  const WorkerDescription& chosen = answer.chosen().description();
  response.set_worker_id(chosen.id);
  response.set_worker_address(chosen.address);
  const absl::string_view id = answer.placement.id.view();
  if (placed) response.set_placement_id(id.data(), id.size());
  for (size_t i = 0; i < answer.holders; ++i) {
    const PrefixMatch& match = answer.matches[i];
    const uint64_t tokens = answer.block_tokens(match);
    v1::Holder& holder = *response.add_holders();
    holder.set_worker_id(answer.table->workers[answer.table->Position(match.worker)]->description().id);
    holder.set_device_tokens(match.in(IndexSet::kDevice)*tokens);
    holder.set_memory_tokens(match.in(IndexSet::kMemory)*tokens);
    holder.set_disk_tokens(match.in(IndexSet::kDisk)*tokens);
  }
  EncodeSources(answer, *response.mutable_sources());
  for (const CandidateCost& cost : answer.placement.costs) {
    v1::PlacementReason& reason = *response.add_reasons();
    reason.set_worker_id(answer.worker(cost.candidate).description().id);
    reason.set_local_tokens(cost.local_tokens);
    reason.set_pull_tokens(cost.pull_tokens);
    reason.set_compute_tokens(cost.compute_tokens);
    reason.set_compute_seconds(cost.compute_seconds);
    reason.set_load_seconds(cost.load_seconds);
    reason.set_queue_seconds(cost.queue_seconds);
    reason.set_total_seconds(cost.total_seconds);
  }
  if (!answer.matches.empty()) {
    response.set_matched_tokens(answer.matches[0].longest() * answer.block_tokens(answer.matches[0]));
  }
  response.set_predicted_hit_tokens(answer.cost().hit_tokens());
}

}  // namespace

void EncodeSources(const RouteAnswer& answer, google::protobuf::RepeatedPtrField<v1::SourceSpan>& sources) {
  for (const RouteSource& source : answer.sources) {
    v1::SourceSpan& span = *sources.Add();
    span.set_first_block(source.span.first_block);
    span.set_block_count(source.span.block_count);
    span.set_peer_id(source.peer->description().id);
    span.set_peer_address(source.peer->description().address);
    span.set_set(ToWire(source.span.set));
    span.set_ticket(source.ticket);
    span.set_predicted_bytes(source.bytes);
  }
}

absl::Status RunRoute(CoordinatorCore& core, const v1::RouteRequest& request, const CallTenant& tenant,
                      v1::RouteResponse& response) {
  const absl::Time start = core.options.clock->Now();
  thread_local Scratch scratch;
  DecodedPrompt& prompt = scratch.prompt;
  RouteAnswer& answer = scratch.answer;
  absl::Status status = DecodeRoute(request, tenant, core.identities, prompt);
  if (status.ok()) {
    status = core.router.Route({.prefix = {.root = prompt.root,
                                           .keys = prompt.keys,
                                           .accepted = LossyFormats(request.accepted_lossy_formats())},
                                .block_tokens = prompt.block_tokens,
                                .prompt_tokens = prompt.prompt_tokens,
                                .top_k = request.top_k() == 0 ? kDefaultTopK : request.top_k(),
                                .worker_id = request.worker_id(),
                                .lookup_only = request.lookup_only()},
                               answer);
  }
  uint64_t requested = 0;  // what the cache could have held: whole blocks
  if (status.ok()) {
    Encode(answer, !request.lookup_only(), response);
    requested = prompt.keys.size() * uint64_t{answer.chosen().description().block_tokens};
  }
  const absl::Duration took = core.options.clock->Now() - start;
  if (status.ok() && request.lookup_only()) {
    core.counters.CountLookup(took);
  } else {
    core.counters.CountRoute(status, requested, &answer, took);
  }
  answer.table.reset();
  return status;
}

}  // namespace kvmesh
