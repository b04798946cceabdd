// Stats and DebugState: the books.
#include "kvstore/service/grpc_status.h"
#include "kvstore/service/members.h"
#include "worker/server/decode.h"
#include "worker/server/worker_service.h"

namespace kvmesh {

grpc::Status WorkerService::Stats(grpc::ServerContext*, const v1::WorkerStatsRequest*,
                                  v1::WorkerStatsResponse* response) {
  const WorkerTotals totals = core_.worker_metrics().totals();
  const BlockStore::Books books = core_.GetBooks();
  response->set_worker_id(core_.options().worker_id);
  response->set_incarnation(core_.incarnation().ToString());
  response->set_requested_tokens(totals.requested_tokens);
  HitsToProto(totals.hits, *response->mutable_hits());
  response->set_computed_tokens(totals.computed_tokens);
  for (const auto& [reason, tokens] : totals.misses) (*response->mutable_misses_by_reason())[reason] = tokens;
  for (const Tier tier : kAllTiers) {
    (*response->mutable_evictions_by_tier())[std::string(TierName(tier))] = books.evictions[static_cast<size_t>(tier)];
  }
  response->set_fetched_bytes(totals.fetched_bytes);
  response->set_served_bytes(block_server_.counters().served_bytes);
  return grpc::Status::OK;
}

grpc::Status WorkerService::DebugState(grpc::ServerContext* context, const v1::DebugStateRequest*,
                                       v1::DebugStateResponse* response) {
  const absl::Status allowed = CheckMember(*context, core_.options().members, core_.options().tls);
  if (!allowed.ok()) return ToGrpcStatus(allowed);
  const BlockStore::Books books = core_.GetBooks();
  response->set_worker_id(core_.options().worker_id);
  response->set_incarnation(core_.incarnation().ToString());
  v1::TierBooks* const tiers[] = {response->mutable_device(), response->mutable_host(), response->mutable_disk()};
  for (size_t i = 0; i < 3; ++i) {
    tiers[i]->set_capacity_blocks(books.tiers[i].capacity);
    tiers[i]->set_used_blocks(books.tiers[i].used);
  }
  const v1::BlockSet sets[] = {v1::BLOCK_SET_DEVICE, v1::BLOCK_SET_MEMORY, v1::BLOCK_SET_DISK};
  for (size_t i = 0; i < 3; ++i) {
    v1::SetBooks* set = response->add_sets();
    set->set_set(sets[i]);
    set->set_count(books.digests[i].count());
    set->set_digest(books.digests[i].SumBytes());
  }
  response->set_pinned_blocks(books.pinned_blocks);
  response->set_read_pins(books.read_pins);
  response->set_private_blocks(books.private_blocks);
  response->set_quarantined_blocks(core_.fetcher().quarantined_blocks());
  response->set_open_sequences(core_.sequences().open_sequences());
  response->set_sessions(core_.sequences().open_sessions());
  response->set_transfers_in_flight(core_.fetcher().transfers_in_flight());
  response->set_serving_fetches(block_server_.counters().serves_in_flight);
  response->set_computing_blocks(core_.resumer().computing().claimed());
  response->set_event_sequence(core_.store().events().last());
  response->set_pins(core_.pins().size());
  return grpc::Status::OK;
}

}  // namespace kvmesh
