// OpenSequence, AppendKv, Accept, Fork, Truncate, CloseSequence, Session.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/mla.h"
#include "kernels/reshape_and_cache.h"
#include "kvstore/block/attention_policy.h"
#include "kvstore/service/grpc_status.h"
#include "kvstore/service/trace_context.h"
#include "kvstore/wire/wire.h"
#include "worker/server/decode.h"
#include "worker/server/worker_service.h"

namespace kvmesh {
namespace {

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

// Floats of a token in one layer, in `key` and in `value`.
std::pair<uint64_t, uint64_t> TokenFloats(const BlockLayout& layout) {
  if (layout.mla()) return {layout.latent_dim, layout.head_dim - layout.latent_dim};
  const auto floats = static_cast<uint64_t>(layout.kv_heads * layout.head_dim);
  return {floats, floats};
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
  TablesToProto(*sequence, true, *response.mutable_groups());
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
  const uint64_t rows = uint64_t{request.tokens()} * request.layers();
  const auto [key_floats, value_floats] = TokenFloats(layout);
  const absl::StatusOr<std::vector<float>> key = FloatsFromBytes(request.key(), rows * key_floats, "key");
  if (!key.ok()) return key.status();
  const absl::StatusOr<std::vector<float>> value = FloatsFromBytes(request.value(), rows * value_floats, "value");
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
    const auto of_layer = [&](const std::vector<float>& values, uint64_t token_floats) {
      const uint64_t count = request.tokens() * token_floats;
      return std::span(values).subspan(static_cast<size_t>(layer) * count, count);
    };
    (layout.mla() ? ConcatAndCacheMla : ReshapeAndCache)(
        of_layer(*key, key_floats), of_layer(*value, value_floats), (*slots)[place.group], place.layer,
        (*sequence)->table(place.group).group().store->device().view());
  }
  (*sequence)->MarkWritten(first_layer, layers, end);
  response.set_computed_tokens((*sequence)->ready());
  TablesToProto(**sequence, false, *response.mutable_groups());
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
  TablesToProto(*fork, true, *response->mutable_groups());
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
