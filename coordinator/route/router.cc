#include "coordinator/route/router.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kvstore/block/ticket.h"

namespace kvmesh {
namespace {

Candidate MakeCandidate(const WorkerEntry& worker, const PlacementRates& defaults) {
  const WorkerDescription& description = worker.description();
  Candidate out;
  out.slot = worker.slot();
  out.rates = WithDefaults({.prefill_tokens_per_second = worker.prefill_tokens_per_second(),
                            .host_bytes_per_second = description.host_bytes_per_second,
                            .disk_bytes_per_second = description.disk_bytes_per_second,
                            .peer_bytes_per_second = description.peer_bytes_per_second},
                           defaults);
  out.block_tokens = description.block_tokens;
  out.block_bytes = description.block_bytes;
  out.layout = description.layout;
  out.eligible = false;
  out.queue_seconds = static_cast<double>(worker.queued_tokens()) / out.rates.prefill_tokens_per_second;
  return out;
}

// Cuts the matches of workers with windows to their usable boundaries, and adds those that have these alone.
void KeepUsable(std::span<const BlockKey> keys, const WorkerTable& table, std::vector<PrefixMatch>& matches) {
  for (PrefixMatch& match : matches) {
    const int64_t position = table.Position(match.worker);
    if (position < 0) continue;
    const WorkerEntry& worker = *table.workers[position];
    if (worker.description().boundaries != BoundaryRule::kUsable) continue;
    const uint32_t usable = worker.boundaries.Longest(keys.first(match.longest()));
    for (uint32_t& blocks : match.blocks) blocks = std::min(blocks, usable);
  }
  std::erase_if(matches, [](const PrefixMatch& match) { return match.longest() == 0; });
  for (const auto& worker : table.workers) {
    if (worker->description().boundaries != BoundaryRule::kUsableAlone) continue;
    const uint32_t usable = worker->boundaries.Longest(keys);
    if (usable > 0) matches.push_back({.worker = worker->slot(), .blocks = {0, usable, 0}});
  }
}

}  // namespace

absl::Status RouterOptions::Validate() const {
  if (ticket_life <= absl::ZeroDuration() || ticket_life > kMaxTicketLife) {
    return absl::InvalidArgumentError("ticket_life: not above 0 and at most 30 s");
  }
  return absl::OkStatus();
}

absl::Status Router::Route(const RouteQuery& query, RouteAnswer& answer) {
  Look(query, answer);
  KVMESH_RETURN_IF_ERROR(MarkEligible(query, answer));
  KVMESH_RETURN_IF_ERROR(
      placer_.Place({.keys = query.prefix.keys, .prompt_tokens = query.prompt_tokens, .lookup_only = query.lookup_only},
                    std::span(answer.candidates), answer.placement));
  MintSources(query, answer.placement.sources, answer.placement.chosen, answer);
  return absl::OkStatus();
}

absl::Status Router::PlanPrefetch(const RouteQuery& query, RouteAnswer& answer) {
  Look(query, answer);
  size_t receiver = answer.candidates.size();
  for (size_t i = 0; i < answer.candidates.size(); ++i) {
    if (answer.worker(i).description().id == query.worker_id) receiver = i;
  }
  if (receiver == answer.candidates.size()) return absl::NotFoundError("worker_id: no such worker");
  if (answer.matches.empty()) return absl::NotFoundError("prefix: nobody holds it");
  // The caller wants it there: computing is no alternative.
  answer.candidates[receiver].rates.prefill_tokens_per_second = 1e-9;
  std::vector<size_t> all(answer.candidates.size());
  std::iota(all.begin(), all.end(), size_t{0});
  std::vector<PullSpan> spans;
  PlanPulls(placer_.options(), answer.candidates, all, receiver, spans);
  MintSources(query, spans, receiver, answer);
  return absl::OkStatus();
}

std::vector<std::shared_ptr<WorkerEntry>> Router::Holders(const PrefixQuery& prefix) const {
  const std::shared_ptr<const WorkerTable> table = registry_.Table();
  std::vector<PrefixMatch> matches;
  index_.LookupAll(prefix, matches);
  std::vector<std::shared_ptr<WorkerEntry>> out;
  for (const PrefixMatch& match : matches) {
    const int64_t position = table->Position(match.worker);
    if (position >= 0 && match.longest() == prefix.keys.size()) out.push_back(table->workers[position]);
  }
  return out;
}

void Router::Look(const RouteQuery& query, RouteAnswer& answer) const {
  answer.table = registry_.Table();
  answer.sources.clear();
  answer.candidates.clear();
  for (const auto& worker : answer.table->workers) {
    answer.candidates.push_back(MakeCandidate(*worker, placer_.options().default_rates));
  }
  // A worker whose slot is dark in this table may still stand in the index until it is swept.
  index_.LookupAll(query.prefix, answer.matches);
  KeepUsable(query.prefix.keys, *answer.table, answer.matches);
  std::erase_if(answer.matches, [&](const PrefixMatch& match) {
    const int64_t position = answer.table->Position(match.worker);
    if (position < 0 || answer.table->workers[position]->gone()) return true;
    answer.candidates[position].blocks = match.blocks;
    return false;
  });
  answer.holders = std::min(query.top_k, answer.matches.size());
  // One at least, for the longest match.
  const size_t sorted = std::min(std::max<size_t>(answer.holders, 1), answer.matches.size());
  std::partial_sort(answer.matches.begin(), answer.matches.begin() + sorted, answer.matches.end(), BetterMatch);
}

absl::Status Router::MarkEligible(const RouteQuery& query, RouteAnswer& answer) const {
  const absl::Time now = registry_.Now();
  const auto mark = [&](WorkerState state) {
    bool any = false;
    for (size_t i = 0; i < answer.candidates.size(); ++i) {
      const WorkerEntry& worker = answer.worker(i);
      if (worker.state() != state || !registry_.IsAlive(worker, now)) continue;
      if (query.block_tokens != 0 && worker.description().block_tokens != query.block_tokens) continue;
      if (!query.worker_id.empty() && worker.description().id != query.worker_id) continue;
      answer.candidates[i].eligible = true;
      any = true;
    }
    return any;
  };
  if (mark(WorkerState::kReady) || mark(WorkerState::kWarming)) return absl::OkStatus();
  if (!query.worker_id.empty()) {
    return absl::UnavailableError(absl::StrCat("worker_id: ", query.worker_id, " is not live, or drains"));
  }
  return absl::UnavailableError("no live worker that takes requests of this block size");
}

void Router::MintSources(const RouteQuery& query, std::span<const PullSpan> spans, size_t receiver,
                         RouteAnswer& answer) {
  answer.sources.clear();
  if (spans.empty()) return;
  const WorkerDescription& to = answer.worker(receiver).description();
  Ticket ticket;
  ticket.receiver = to.id;
  ticket.receiver_incarnation = to.incarnation;
  ticket.root = query.prefix.root;
  ticket.accepted = query.prefix.accepted;
  ticket.expiry = absl::FromUnixMillis(absl::ToUnixMillis(clock_.Now() + options_.ticket_life));
  for (const PullSpan& span : spans) {
    const WorkerEntry& peer = answer.worker(span.source);
    RouteSource& source = answer.sources.emplace_back();
    source.span = span;
    source.peer = &peer;
    source.bytes = span.block_count * to.block_bytes;
    if (query.lookup_only) continue;
    random_.Fill(ticket.id.bytes.data(), ticket.id.bytes.size());
    ticket.sender = peer.description().id;
    ticket.sender_incarnation = peer.description().incarnation;
    ticket.last_key = query.prefix.keys[span.first_block + span.block_count - 1];
    ticket.first_block = span.first_block;
    ticket.block_count = span.block_count;
    source.ticket = SealTicket(ticket, ticket_key_);
  }
}

}  // namespace kvmesh
