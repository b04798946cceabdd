// Attend: attention of an engine's queries over a sequence's blocks, one layer.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/mla.h"
#include "kernels/paged_attention.h"
#include "kernels/streaming_attention.h"
#include "kvstore/service/grpc_server.h"
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

// Floats of a call.
struct AttendSizes {
  uint64_t query = 0;
  uint64_t output = 0;
  uint64_t lse = 0;
};

// FAILED_PRECONDITION: rows that the kernels don't take. INVALID_ARGUMENT naming the field.
absl::StatusOr<AttendSizes> CheckShape(const v1::AttendRequest& request, const BlockLayout& layout, int32_t layers) {
  if (request.layer() >= static_cast<uint32_t>(layers)) {
    return absl::InvalidArgumentError(absl::StrCat("layer: ", request.layer(), ", the model has ", layers));
  }
  const int32_t max_row = layout.mla() ? kMaxLatentRow : kMaxHeadRow;
  if (layout.head_dim % 8 != 0 || layout.head_dim > max_row) {
    return absl::FailedPreconditionError(
        absl::StrCat("attend: rows of ", layout.head_dim,
                     " elements in this worker's layout, must be a multiple of 8 up to ", max_row));
  }
  if (request.q_heads() == 0 || request.q_heads() > kMaxQueryHeads ||
      request.q_heads() % static_cast<uint32_t>(layout.kv_heads) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("q_heads: ", request.q_heads(), ", must be a multiple of ",
                                                   layout.kv_heads, " up to ", kMaxQueryHeads));
  }
  if (layout.mla() && request.scale() == 0) {
    return absl::InvalidArgumentError("scale: 0, must be given for attention over latents");
  }
  if (layout.mla() && !request.head_sinks().empty()) {
    return absl::InvalidArgumentError("head_sinks: not for attention over latents");
  }
  KVMESH_RETURN_IF_ERROR(CheckTokenCount(request.tokens(), "tokens"));
  const uint64_t rows = uint64_t{request.tokens()} * request.q_heads();
  return AttendSizes{
      .query = rows * static_cast<uint64_t>(layout.head_dim),
      .output = rows * static_cast<uint64_t>(layout.mla() ? layout.latent_dim : layout.head_dim),
      .lse = request.return_lse() ? rows : 0,
  };
}

absl::Status CheckAnswer(const v1::AttendRequest& request, const AttendSizes& sizes) {
  const uint64_t bytes = (sizes.output + sizes.lse) * sizeof(float);
  if (bytes <= kMaxAnswerBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tokens: ", request.tokens(), ", the answer would have ", bytes,
                                                 " bytes, the limit is ", kMaxAnswerBytes));
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
  const uint64_t out_row = pool.layout.mla() ? heads * static_cast<uint64_t>(pool.layout.latent_dim) : row;
  const std::span<float> to = out.subspan(at * out_row, queries * out_row);
  const std::span<float> lse_to = lse.empty() ? lse : lse.subspan(at * heads, queries * heads);
  if (pool.layout.mla()) {
    const MlaParams params{.q_heads = call.params.q_heads, .scale = call.params.scale};
    return MlaPagedDecode(query, {&part, 1}, call.layer, params, pool, to, lse_to);
  }
  if (call.streaming.sinks == 0) return PagedAttention(query, {&part, 1}, call.layer, call.params, pool, to, lse_to);
  const std::span<const float> sink_query =
      call.sink_query.empty() ? call.sink_query : call.sink_query.subspan(at * row, queries * row);
  StreamingAttention(query, sink_query, {&part, 1}, call.layer, call.params, call.streaming, pool, to, lse_to);
}

}  // namespace

grpc::Status WorkerService::Attend(grpc::ServerContext* context, const v1::AttendRequest* request,
                                   v1::AttendResponse* response) {
  SlowCallLog call("worker", "Attend", *context, core_.options().slow_call);
  return call.Finish(AttendTo(*context, *request, *response));
}

absl::Status WorkerService::AttendTo(const grpc::ServerContext& context, const v1::AttendRequest& request,
                                     v1::AttendResponse& response) {
  const BlockLayout& layout = core_.store().device().layout();
  const absl::StatusOr<AttendSizes> sizes = CheckShape(request, layout, core_.layers());
  if (!sizes.ok()) return sizes.status();
  const absl::StatusOr<std::vector<float>> query = FloatsFromBytes(request.query(), sizes->query, "query");
  if (!query.ok()) return query.status();
  KVMESH_RETURN_IF_ERROR(CheckAnswer(request, *sizes));
  const absl::StatusOr<std::vector<float>> head_sinks =
      FloatsFromBytes(request.head_sinks(), request.head_sinks().empty() ? 0 : request.q_heads(), "head_sinks");
  if (!head_sinks.ok()) return head_sinks.status();
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
    absl::StatusOr<std::vector<float>> given = FloatsFromBytes(request.sink_query(), sizes->query, "sink_query");
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
  call.params.sinks = *head_sinks;
  std::vector<float> out(sizes->output);
  std::vector<float> lse(sizes->lse);
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

}  // namespace kvmesh
