// OpenSequence, AppendKv, Accept, Attend, Fork, Truncate, CloseSequence, Session.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/paged_attention.h"
#include "kernels/reshape_and_cache.h"
#include "kernels/streaming_attention.h"
#include "kvstore/block/attention_policy.h"
#include "kvstore/service/grpc_server.h"
#include "kvstore/service/grpc_status.h"
#include "kvstore/service/trace_context.h"
#include "kvstore/wire/wire.h"
#include "worker/server/decode.h"
#include "worker/server/worker_service.h"

namespace kvmesh {
namespace {

// Query heads that Attend takes.
constexpr uint32_t kMaxQueryHeads = 1024;
// Scores that Attend computes between two looks at its deadline: some tens of milliseconds.
constexpr uint64_t kAttendScores = uint64_t{1} << 24;
// Of an answer's floats; the message around them takes little.
constexpr uint64_t kMaxAnswerBytes = kMaxMessageBytes - (uint64_t{1} << 16);

// Makes `ids`, the last `drafts` of them drafts, the sequence's last tokens, up to position `end`; a repeated call
// finds them there. INVALID_ARGUMENT: they neither follow the known tokens nor equal them, or accepted ones follow
// drafts.
absl::Status ExtendTo(uint64_t end, std::span<const uint32_t> ids, size_t drafts, Sequence& sequence) {
  if (drafts > ids.size()) {
    return absl::InvalidArgumentError(absl::StrCat("draft_tokens: ", drafts, " of ", ids.size(), " token_ids"));
  }
  if (ids.empty()) return absl::OkStatus();
  const std::vector<uint32_t>& known = sequence.tokens();
  if (known.size() + ids.size() == end) {
    KVMESH_RETURN_IF_ERROR(CheckTokenCount(end, "token_ids"));
    KVMESH_RETURN_IF_ERROR(sequence.Extend(ids.first(ids.size() - drafts)));
    return sequence.ExtendWithDrafts(ids.last(drafts));
  }
  if (known.size() == end && ids.size() <= end && std::equal(ids.rbegin(), ids.rend(), known.rbegin())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("token_ids: ", ids.size(), " ids don't lead from the ", known.size(),
                                                 " known tokens to position ", end));
}

// What queries at [start, start + count) see is held. INVALID_ARGUMENT: the sequence let go of some of it.
absl::Status CheckSeen(const GroupTable& table, uint64_t start, uint64_t count) {
  if (count == 0) return absl::OkStatus();
  const auto block_tokens = static_cast<uint32_t>(table.group().store->device().layout().block_tokens);
  const NeededBlocks needed = BlocksSeenFrom(table.group(), start, start + count, block_tokens);
  for (uint32_t i = 0; i < needed.end; ++i) {
    if (!needed.Has(i) || table.held(i)) continue;
    return absl::InvalidArgumentError(absl::StrCat("start_position: ", start, " sees block ", i,
                                                   ", which its window has left behind since the last append"));
  }
  return absl::OkStatus();
}

struct AttendCall {
  const GroupTable& blocks;
  const std::vector<uint32_t> table;
  int32_t layer;  // in the group
  AttentionParams params;
  StreamingPolicy streaming;  // without sinks: the window is that of `params`
  std::span<const float> query;
  std::span<const float> sink_query;  // or empty
};

// Queries [at, at + queries) of a call whose first query stands at `start`.
void AttendSlice(const AttendCall& call, uint64_t start, uint64_t at, uint64_t queries, std::span<float> out,
                 std::span<float> lse) {
  const KvPoolView& pool = call.blocks.group().store->device().view();
  const uint64_t heads = static_cast<uint64_t>(call.params.q_heads);
  const uint64_t row = heads * static_cast<uint64_t>(pool.layout.head_dim);
  const AttentionSequence part{.block_table = call.table,
                               .first_position = static_cast<int64_t>(start + at),
                               .queries = static_cast<int64_t>(queries)};
  const std::span<const float> query = call.query.subspan(at * row, queries * row);
  const std::span<float> to = out.subspan(at * row, queries * row);
  const std::span<float> lse_to = lse.empty() ? lse : lse.subspan(at * heads, queries * heads);
  if (call.streaming.sinks == 0) return PagedAttention(query, {&part, 1}, call.layer, call.params, pool, to, lse_to);
  const std::span<const float> sink_query =
      call.sink_query.empty() ? call.sink_query : call.sink_query.subspan(at * row, queries * row);
  StreamingAttention(query, sink_query, {&part, 1}, call.layer, call.params, call.streaming, pool, to, lse_to);
}

}  // namespace

absl::Status WorkerService::CheckOpen() const {
  return core_.draining() ? absl::UnavailableError("worker: draining") : absl::OkStatus();
}

grpc::Status WorkerService::Session(grpc::ServerContext* context,
                                    grpc::ServerReaderWriter<v1::SessionResponse, v1::SessionRequest>* stream) {
  const absl::StatusOr<std::string> caller = CallerOf(*context);
  if (!caller.ok()) return ToGrpcStatus(caller.status());
  const absl::StatusOr<uint64_t> session = core_.sequences().OpenSession(*caller);
  if (!session.ok()) return ToGrpcStatus(session.status());
  const StreamCalls::Watch watch(calls_, *context, absl::InfiniteFuture());
  v1::SessionResponse response;
  response.set_session_id(*session);
  stream->Write(response);
  v1::SessionRequest request;
  while (!context->IsCancelled() && stream->Read(&request)) {
  }
  core_.sequences().CloseSession(*session);
  return grpc::Status::OK;
}

grpc::Status WorkerService::OpenSequence(grpc::ServerContext* context, const v1::OpenSequenceRequest* request,
                                         v1::OpenSequenceResponse* response) {
  SlowCallLog call("worker", "OpenSequence", *context, core_.options().slow_call);
  return call.Finish(Open(*context, *request, *response));
}

absl::Status WorkerService::Open(const grpc::ServerContext& context, const v1::OpenSequenceRequest& request,
                                 v1::OpenSequenceResponse& response) {
  KVMESH_RETURN_IF_ERROR(CheckOpen());
  KVMESH_RETURN_IF_ERROR(CheckTokenCount(static_cast<uint64_t>(request.tokens_size()), "tokens"));
  const absl::StatusOr<RootKey> root = RootFor(context, request.identity());
  if (!root.ok()) return root.status();
  const absl::StatusOr<std::vector<PeerSource>> sources = SourcesFromProto(request.sources());
  if (!sources.ok()) return sources.status();
  const absl::StatusOr<std::string> caller = CallerOf(context);
  if (!caller.ok()) return caller.status();
  const absl::Duration lease =
      absl::Milliseconds(static_cast<int64_t>(std::min<uint64_t>(request.lease_ms(), 1u << 31)));
  KVMESH_RETURN_IF_ERROR(core_.sequences().CheckRoom(request.session_id(), lease, *caller));

  const absl::StatusOr<StreamingPolicy> policy = ParseAttentionPolicy(request.identity().attention_policy());
  if (!policy.ok()) return policy.status();
  const absl::StatusOr<std::vector<CacheGroup>> groups = core_.Groups(*policy);
  if (!groups.ok()) return groups.status();
  auto sequence = std::make_unique<Sequence>(*groups, *root, !request.no_cache(),
                                             std::vector<uint32_t>(request.tokens().begin(), request.tokens().end()));
  HitTokensBySource hits{};
  if (!request.no_cache()) {
    const absl::Time now = core_.options().clock->Now();
    // Half of the time is left to compute what could not be had.
    const absl::Time deadline = now + (CallDeadline(context, *core_.options().clock) - now) / 2;
    ResumeResult resumed =
        core_.resumer().Resume({.groups = *groups,
                                .root = *root,
                                .keys = sequence->keys(),
                                .tokens = sequence->tokens().size(),
                                .sources = *sources,
                                .accepted = LossyFormats(request.accepted_lossy_formats()),
                                .deadline = deadline,
                                .sibling_deadline = std::min(deadline, now + core_.options().sibling_wait)});
    hits = resumed.TokensBySource(static_cast<uint32_t>(core_.store().device().layout().block_tokens));
    sequence->Adopt(std::move(resumed));
  }
  response.set_computed_tokens(sequence->computed_tokens());
  HitsToProto(hits, *response.mutable_hits());
  for (const uint32_t block : sequence->table(0).ids()) response.add_block_table(block);
  // A caller that has gone would never close it.
  if (context.IsCancelled()) return absl::CancelledError("OpenSequence: the caller went away");
  const absl::StatusOr<SequenceId> id =
      core_.sequences().Insert(std::move(sequence), request.session_id(), lease, *caller);
  if (!id.ok()) return id.status();
  response.set_sequence_id(id->value());
  if (const auto lease = core_.sequences().LeaseDeadline(*id); lease.ok()) {
    response.set_lease_deadline_ms(static_cast<uint64_t>(absl::ToUnixMillis(*lease)));
  }
  return absl::OkStatus();
}

grpc::Status WorkerService::AppendKv(grpc::ServerContext* context, const v1::AppendKvRequest* request,
                                     v1::AppendKvResponse* response) {
  SlowCallLog call("worker", "AppendKv", *context, core_.options().slow_call);
  return call.Finish(Append(*context, *request, *response));
}

absl::Status WorkerService::Append(const grpc::ServerContext& context, const v1::AppendKvRequest& request,
                                   v1::AppendKvResponse& response) {
  const BlockLayout& layout = core_.store().device().layout();
  if (request.layers() == 0 || request.layers() > static_cast<uint32_t>(core_.layers()) ||
      request.first_layer() > static_cast<uint32_t>(core_.layers()) - request.layers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers: ", request.first_layer(), " + ", request.layers(), ", the model has ", core_.layers()));
  }
  KVMESH_RETURN_IF_ERROR(CheckTokenCount(request.tokens(), "tokens"));
  const uint64_t per_layer = uint64_t{request.tokens()} * static_cast<uint64_t>(layout.kv_heads * layout.head_dim);
  const absl::StatusOr<std::vector<float>> key = FloatsFromBytes(request.key(), per_layer * request.layers(), "key");
  if (!key.ok()) return key.status();
  const absl::StatusOr<std::vector<float>> value =
      FloatsFromBytes(request.value(), per_layer * request.layers(), "value");
  if (!value.ok()) return value.status();

  absl::StatusOr<SequenceTable::Borrowed> sequence = BorrowFor(context, request.sequence_id());
  if (!sequence.ok()) return sequence.status();
  const std::span<const uint32_t> ids(request.token_ids().data(), static_cast<size_t>(request.token_ids_size()));
  const uint64_t end = request.start_position() + request.tokens();
  if (end < request.start_position()) return absl::InvalidArgumentError("start_position: out of range");
  if (request.start_position() > (*sequence)->written(static_cast<int32_t>(request.first_layer()))) {
    return absl::InvalidArgumentError(absl::StrCat("start_position: ", request.start_position(),
                                                   " leaves a gap after position ",
                                                   (*sequence)->written(static_cast<int32_t>(request.first_layer()))));
  }
  KVMESH_RETURN_IF_ERROR(ExtendTo(end, ids, request.draft_tokens(), **sequence));
  const int32_t first_layer = static_cast<int32_t>(request.first_layer());
  const int32_t layers = static_cast<int32_t>(request.layers());
  const absl::Time deadline = CallDeadline(context, *core_.options().clock);
  const absl::StatusOr<Sequence::GroupSlots> slots =
      (*sequence)->PrepareSlots(request.start_position(), request.tokens(), first_layer, layers, deadline);
  if (!slots.ok()) return slots.status();
  for (int32_t layer = 0; layer < layers; ++layer) {
    const Sequence::LayerPlace place = (*sequence)->PlaceOf(first_layer + layer);
    ReshapeAndCache(std::span(*key).subspan(static_cast<size_t>(layer) * per_layer, per_layer),
                    std::span(*value).subspan(static_cast<size_t>(layer) * per_layer, per_layer), (*slots)[place.group],
                    place.layer, (*sequence)->table(place.group).group().store->device().view());
  }
  (*sequence)->MarkWritten(first_layer, layers, end);
  response.set_computed_tokens((*sequence)->ready());
  for (const uint32_t block : (*sequence)->table(0).ids()) response.add_block_table(block);
  return absl::OkStatus();
}

grpc::Status WorkerService::Accept(grpc::ServerContext* context, const v1::AcceptRequest* request,
                                   v1::AcceptResponse* response) {
  SlowCallLog call("worker", "Accept", *context, core_.options().slow_call);
  absl::StatusOr<SequenceTable::Borrowed> sequence = BorrowFor(*context, request->sequence_id());
  if (!sequence.ok()) return call.Finish(sequence.status());
  const absl::Status status = (*sequence)->Accept(request->tokens());
  response->set_computed_tokens((*sequence)->ready());
  return call.Finish(status);
}

grpc::Status WorkerService::Attend(grpc::ServerContext* context, const v1::AttendRequest* request,
                                   v1::AttendResponse* response) {
  SlowCallLog call("worker", "Attend", *context, core_.options().slow_call);
  return call.Finish(AttendTo(*context, *request, *response));
}

absl::Status WorkerService::AttendTo(const grpc::ServerContext& context, const v1::AttendRequest& request,
                                     v1::AttendResponse& response) {
  const BlockLayout& layout = core_.store().device().layout();
  if (request.layer() >= static_cast<uint32_t>(core_.layers())) {
    return absl::InvalidArgumentError(absl::StrCat("layer: ", request.layer(), ", the model has ", core_.layers()));
  }
  if (layout.head_dim % 8 != 0 || layout.head_dim > 256) {
    return absl::FailedPreconditionError(
        absl::StrCat("attend: head_dim ", layout.head_dim, " of this worker's layout is no multiple of 8 up to 256"));
  }
  if (request.q_heads() == 0 || request.q_heads() > kMaxQueryHeads ||
      request.q_heads() % static_cast<uint32_t>(layout.kv_heads) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("q_heads: ", request.q_heads(), ", must be a multiple of ",
                                                   layout.kv_heads, " up to ", kMaxQueryHeads));
  }
  KVMESH_RETURN_IF_ERROR(CheckTokenCount(request.tokens(), "tokens"));
  const uint64_t values = uint64_t{request.tokens()} * request.q_heads() * static_cast<uint64_t>(layout.head_dim);
  const absl::StatusOr<std::vector<float>> query = FloatsFromBytes(request.query(), values, "query");
  if (!query.ok()) return query.status();
  const uint64_t answers = values + (request.return_lse() ? uint64_t{request.tokens()} * request.q_heads() : 0);
  if (answers * sizeof(float) > kMaxAnswerBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tokens: ", request.tokens(), ", the answer would have ",
                                                   answers * sizeof(float), " bytes, the limit is ", kMaxAnswerBytes));
  }
  absl::StatusOr<SequenceTable::Borrowed> sequence = BorrowFor(context, request.sequence_id());
  if (!sequence.ok()) return sequence.status();
  const uint64_t written = (*sequence)->written(static_cast<int32_t>(request.layer()));
  if (request.start_position() > written || request.tokens() > written - request.start_position()) {
    return absl::InvalidArgumentError(absl::StrCat("start_position: ", request.start_position(), " + ",
                                                   request.tokens(), " tokens, layer ", request.layer(), " has K/V of ",
                                                   written));
  }
  const Sequence::LayerPlace place = (*sequence)->PlaceOf(static_cast<int32_t>(request.layer()));
  const GroupTable& blocks = (*sequence)->table(place.group);
  KVMESH_RETURN_IF_ERROR(CheckSeen(blocks, request.start_position(), request.tokens()));
  const StreamingPolicy streaming{.sinks = blocks.group().sinks, .window = blocks.group().window};
  std::vector<float> sink_query;
  if (streaming.sinks > 0 && SinksOutside(streaming, static_cast<int64_t>(written)) > 0) {
    absl::StatusOr<std::vector<float>> given = FloatsFromBytes(request.sink_query(), values, "sink_query");
    if (!given.ok()) return given.status();
    sink_query = *std::move(given);
  }
  AttendCall call{.blocks = blocks,
                  .table = blocks.ids(),
                  .layer = place.layer,
                  .params = {},
                  .streaming = streaming,
                  .query = *query,
                  .sink_query = sink_query};
  call.params.q_heads = static_cast<int32_t>(request.q_heads());
  call.params.scale = request.scale() != 0 ? request.scale() : 1.0f / std::sqrt(static_cast<float>(layout.head_dim));
  call.params.window = streaming.window;
  std::vector<float> out(values);
  std::vector<float> lse(request.return_lse() ? uint64_t{request.tokens()} * request.q_heads() : 0);
  const absl::Time deadline = CallDeadline(context, *core_.options().clock);
  // A few queries at a time, so that a call ends soon after its caller has gone or its deadline has come.
  const uint64_t scores_per_query = (request.start_position() + request.tokens()) * request.q_heads();
  const uint64_t slice = std::max<uint64_t>(1, kAttendScores / std::max<uint64_t>(1, scores_per_query));
  for (uint64_t at = 0; at < request.tokens(); at += slice) {
    if (context.IsCancelled()) return absl::CancelledError("attend: the caller went away");
    if (core_.options().clock->Now() >= deadline) {
      return absl::DeadlineExceededError("attend: the deadline came first");
    }
    const uint64_t queries = std::min<uint64_t>(slice, request.tokens() - at);
    AttendSlice(call, request.start_position(), at, queries, out, lse);
  }
  FloatsToBytes(out, *response.mutable_output());
  FloatsToBytes(lse, *response.mutable_lse());
  return absl::OkStatus();
}

grpc::Status WorkerService::Fork(grpc::ServerContext* context, const v1::ForkRequest* request,
                                 v1::ForkResponse* response) {
  SlowCallLog call("worker", "Fork", *context, core_.options().slow_call);
  std::unique_ptr<Sequence> fork;
  {
    absl::StatusOr<SequenceTable::Borrowed> sequence = BorrowFor(*context, request->sequence_id());
    if (!sequence.ok()) return call.Finish(sequence.status());
    absl::StatusOr<std::unique_ptr<Sequence>> made = (*sequence)->Fork(CallDeadline(*context, *core_.options().clock));
    if (!made.ok()) return call.Finish(made.status());
    fork = *std::move(made);
  }
  for (const uint32_t block : fork->table(0).ids()) response->add_block_table(block);
  const absl::StatusOr<std::string> caller = CallerOf(*context);
  if (!caller.ok()) return call.Finish(caller.status());
  const absl::Duration lease =
      absl::Milliseconds(static_cast<int64_t>(std::min<uint64_t>(request->lease_ms(), 1u << 31)));
  const absl::StatusOr<SequenceId> id =
      core_.sequences().Insert(std::move(fork), request->session_id(), lease, *caller);
  if (id.ok()) response->set_sequence_id(id->value());
  return call.Finish(id.status());
}

grpc::Status WorkerService::Truncate(grpc::ServerContext* context, const v1::TruncateRequest* request,
                                     v1::TruncateResponse* response) {
  SlowCallLog call("worker", "Truncate", *context, core_.options().slow_call);
  absl::StatusOr<SequenceTable::Borrowed> sequence = BorrowFor(*context, request->sequence_id());
  if (!sequence.ok()) return call.Finish(sequence.status());
  const absl::Status status = (*sequence)->Truncate(request->tokens(), CallDeadline(*context, *core_.options().clock));
  response->set_computed_tokens((*sequence)->ready());
  return call.Finish(status);
}

grpc::Status WorkerService::CloseSequence(grpc::ServerContext* context, const v1::CloseSequenceRequest* request,
                                          v1::CloseSequenceResponse*) {
  SlowCallLog call("worker", "CloseSequence", *context, core_.options().slow_call);
  const absl::StatusOr<std::string> caller = CallerOf(*context);
  if (!caller.ok()) return call.Finish(caller.status());
  return call.Finish(core_.sequences().Close(SequenceId(request->sequence_id()), *caller));
}

absl::StatusOr<std::string> WorkerService::CallerOf(const grpc::ServerContext& context) const {
  return core_.options().tls.insecure ? std::string() : PeerTenant(context);
}

absl::StatusOr<SequenceTable::Borrowed> WorkerService::BorrowFor(const grpc::ServerContext& context,
                                                                 uint64_t sequence_id) {
  const absl::StatusOr<std::string> caller = CallerOf(context);
  if (!caller.ok()) return caller.status();
  return core_.sequences().Borrow(SequenceId(sequence_id), *caller, CallDeadline(context, *core_.options().clock));
}

absl::StatusOr<RootKey> WorkerService::RootFor(const grpc::ServerContext& context,
                                               const v1::CacheIdentity& proto) const {
  absl::StatusOr<CacheIdentity> identity = IdentityFromProto(proto);
  if (!identity.ok()) return identity.status();
  if (!core_.options().tls.insecure) {
    absl::StatusOr<std::string> tenant = CallerOf(context);
    if (!tenant.ok()) return tenant.status();
    identity->tenant = *std::move(tenant);
  }
  return core_.RootOf(*identity);
}

}  // namespace kvmesh
