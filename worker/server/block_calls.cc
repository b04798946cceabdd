// PutBlocks, GetBlocks, FetchBlocks: whole blocks in and out.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kvstore/block/attention_policy.h"
#include "kvstore/service/grpc_status.h"
#include "kvstore/service/trace_context.h"
#include "kvstore/wire/wire.h"
#include "worker/server/decode.h"
#include "worker/server/worker_service.h"
#include "worker/transport/grpc/block_pieces.h"

namespace kvmesh {
namespace {

// Takes block bytes cut anywhere and seals each block as it completes.
class BlockIntake {
 public:
  // `keys`: of the chain.
  BlockIntake(const CacheGroup& group, const RootKey& root, std::vector<BlockKey> keys, uint32_t first,
              absl::Time deadline)
      : group_(group.number),
        store_(*group.store),
        root_(root),
        keys_(std::move(keys)),
        deadline_(deadline),
        next_(first) {}

  // Pins the chain before the first block; what stands beside the chain has no parents. NOT_FOUND: it is not held here.
  absl::Status PinParents() {
    if (group_ > 0) return absl::OkStatus();
    BlockStore::Acquired parents = store_.Acquire(std::span(keys_).first(next_), LossyFormats(), deadline_);
    if (parents.pins.size() < next_) {
      return absl::NotFoundError(absl::StrCat("first_block: only ", parents.pins.size(), " of the ", next_,
                                              " blocks before it are held here"));
    }
    pins_ = std::move(parents.pins);
    return absl::OkStatus();
  }

  absl::Status Take(absl::string_view bytes) {
    const size_t block_bytes = static_cast<size_t>(store_.device().layout().block_bytes);
    if (buffer_.empty()) buffer_.resize(block_bytes);
    while (!bytes.empty()) {
      if (next_ == keys_.size()) {
        return absl::InvalidArgumentError("payload: more bytes than the full blocks of the tokens");
      }
      const size_t count = std::min(bytes.size(), block_bytes - filled_);
      std::memcpy(buffer_.data() + filled_, bytes.data(), count);
      filled_ += count;
      bytes.remove_prefix(count);
      if (filled_ == block_bytes) KVMESH_RETURN_IF_ERROR(SealNext());
    }
    return absl::OkStatus();
  }

  // INVALID_ARGUMENT: the stream ended inside a block.
  absl::Status Finish() const {
    if (filled_ == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("payload: ended ", filled_, " bytes into a block of ", buffer_.size()));
  }

  uint32_t stored() const { return stored_; }
  uint32_t present() const { return present_; }

 private:
  absl::Status SealNext() {
    filled_ = 0;
    const BlockStore::SealInfo info{.root = root_,
                                    .key = keys_[next_],
                                    .parent = next_ == 0 ? RootAsParent(root_) : keys_[next_ - 1],
                                    .index = static_cast<uint32_t>(next_),
                                    .lossy_formats = LossyFormats(),
                                    .group = group_};
    const BlockKey found_under = ComputeGroupKey(info.key, group_);
    const BlockStore::Match held = store_.Lookup({&found_under, 1}, LossyFormats());
    absl::StatusOr<PrivateBlock> block = store_.Allocate(deadline_);
    if (!block.ok()) return block.status();
    KVMESH_RETURN_IF_ERROR(store_.device().Write(block->block(), buffer_));
    absl::StatusOr<BlockPin> pin = store_.Seal(*std::move(block), info);
    if (!pin.ok()) return pin.status();
    // The newest block's pin holds its ancestors in a chain.
    pins_.clear();
    pins_.push_back(*std::move(pin));
    (held.blocks[static_cast<size_t>(BlockSetKind::kMemory)] > 0 ? present_ : stored_) += 1;
    ++next_;
    return absl::OkStatus();
  }

  const uint32_t group_;
  BlockStore& store_;
  const RootKey root_;
  const std::vector<BlockKey> keys_;
  const absl::Time deadline_;
  size_t next_;
  std::vector<BlockPin> pins_;
  std::vector<std::byte> buffer_;
  size_t filled_ = 0;
  uint32_t stored_ = 0;
  uint32_t present_ = 0;
};

// Blocks [first, end) of a prompt, to be read.
struct BlockRange {
  size_t first = 0;
  size_t end = 0;
  LossyFormats accepted;
  absl::Time deadline;
};

// Pins of the range's leading blocks that are there or come from a peer, in a chain all of whose blocks before the
// range are.
std::vector<BlockPin> PinChain(WorkerCore& core, const NamedBlocks& named, std::span<const PeerSource> sources,
                               const BlockRange& range) {
  ResumeResult resumed = core.resumer().Resume({.groups = {&named.group, 1},
                                                .root = named.root,
                                                .keys = std::span(named.keys).first(range.end),
                                                .tokens = named.tokens,
                                                .sources = sources,
                                                .accepted = range.accepted,
                                                .deadline = range.deadline,
                                                .sibling_deadline = absl::InfinitePast()});
  std::vector<BlockPin> pins = resumed.TakePins();
  pins.erase(pins.begin(), pins.begin() + static_cast<ptrdiff_t>(std::min(range.first, pins.size())));
  return pins;
}

// The same of a group beside the chain, where each block stands for itself. Where it is all that such sequences have,
// the tokens count as requested.
std::vector<BlockPin> PinBeside(WorkerCore& core, const NamedBlocks& named, const BlockRange& range) {
  const Clock& clock = *core.options().clock;
  const absl::Time start = clock.Now();
  std::vector<BlockKey> keys;
  for (size_t i = range.first; i < range.end; ++i) keys.push_back(ComputeGroupKey(named.keys[i], named.group.number));
  BlockStore::Acquired acquired = named.group.store->Acquire(keys, range.accepted, range.deadline);
  if (!named.first_group) return std::move(acquired.pins);
  const auto block_tokens = static_cast<uint64_t>(named.group.store->device().layout().block_tokens);
  HitTokensBySource hits{};
  for (const Tier tier : acquired.found_in) hits[static_cast<size_t>(tier)] += block_tokens;
  core.worker_metrics().OnResume(keys.size() * block_tokens, hits, clock.Now() - start);
  const uint64_t missed = (keys.size() - acquired.pins.size()) * block_tokens;
  if (missed > 0) core.worker_metrics().OnMiss(MissReasonName(acquired.stopped_by), missed);
  return std::move(acquired.pins);
}

}  // namespace

template <class Request>
absl::StatusOr<NamedBlocks> WorkerService::NameBlocks(const grpc::ServerContext& context,
                                                      const Request& request) const {
  KVMESH_RETURN_IF_ERROR(CheckTokenCount(static_cast<uint64_t>(request.tokens_size()), "tokens"));
  const absl::StatusOr<RootKey> root = RootFor(context, request.identity());
  if (!root.ok()) return root.status();
  const absl::StatusOr<StreamingPolicy> policy = ParseAttentionPolicy(request.identity().attention_policy());
  if (!policy.ok()) return policy.status();
  const absl::StatusOr<std::vector<CacheGroup>> groups = core_.Groups(*policy);
  if (!groups.ok()) return groups.status();
  const uint32_t number = request.has_group() ? request.group() : (*groups)[0].number;
  const auto group =
      std::find_if(groups->begin(), groups->end(), [number](const CacheGroup& each) { return each.number == number; });
  if (group == groups->end()) {
    const auto name = [](std::string* out, const CacheGroup& each) { absl::StrAppend(out, each.number); };
    return absl::InvalidArgumentError(
        absl::StrCat("group: ", number, ", such sequences have ", absl::StrJoin(*groups, " and ", name)));
  }
  const std::vector<uint32_t> tokens(request.tokens().begin(), request.tokens().end());
  return NamedBlocks{
      .group = *group,
      .first_group = group == groups->begin(),
      .root = *root,
      .keys = ComputeBlockKeys(RootAsParent(*root), tokens, request.identity().block_tokens()),
      .tokens = tokens.size(),
  };
}

grpc::Status WorkerService::PutBlocks(grpc::ServerContext* context, grpc::ServerReader<v1::PutBlocksRequest>* reader,
                                      v1::PutBlocksResponse* response) {
  SlowCallLog call("worker", "PutBlocks", *context, core_.options().slow_call);
  return call.Finish(Put(*context, *reader, *response));
}

absl::Status WorkerService::Put(grpc::ServerContext& context, grpc::ServerReader<v1::PutBlocksRequest>& reader,
                                v1::PutBlocksResponse& response) {
  KVMESH_RETURN_IF_ERROR(CheckOpen());
  const absl::Time deadline = CallDeadline(context, *core_.options().clock);
  const StreamCalls::Watch watch(calls_, context, deadline);
  v1::PutBlocksRequest request;
  if (!reader.Read(&request) || !request.has_open()) {
    return absl::InvalidArgumentError("open: must be the first message");
  }
  const v1::PutBlocksRequest::Open& open = request.open();
  absl::StatusOr<NamedBlocks> named = NameBlocks(context, open);
  if (!named.ok()) return named.status();
  if (open.first_block() >= named->keys.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("first_block: ", open.first_block(), ", the tokens have ", named->keys.size(), " full blocks"));
  }
  BlockIntake intake(named->group, named->root, std::move(named->keys), open.first_block(), deadline);
  KVMESH_RETURN_IF_ERROR(intake.PinParents());
  absl::Status status;
  while (status.ok() && reader.Read(&request)) {
    status = request.has_open() ? absl::InvalidArgumentError("open: only the first message opens")
                                : intake.Take(request.payload());
  }
  if (status.ok()) status = intake.Finish();
  response.set_stored_blocks(intake.stored());
  response.set_present_blocks(intake.present());
  return status;
}

grpc::Status WorkerService::StreamGetBlocks(grpc::ServerContext& context, const v1::GetBlocksRequest& request,
                                            const PieceWriter& write) {
  SlowCallLog call("worker", "GetBlocks", context, core_.options().slow_call);
  return call.Finish(Get(context, request, write));
}

absl::Status WorkerService::Get(grpc::ServerContext& context, const v1::GetBlocksRequest& request,
                                const PieceWriter& write) {
  const absl::StatusOr<NamedBlocks> named = NameBlocks(context, request);
  if (!named.ok()) return named.status();
  const absl::StatusOr<std::vector<PeerSource>> sources = SourcesFromProto(request.sources());
  if (!sources.ok()) return sources.status();
  const size_t full = named->keys.size();
  if (request.first_block() > full) {
    return absl::InvalidArgumentError(
        absl::StrCat("first_block: ", request.first_block(), ", the tokens have ", full, " full blocks"));
  }
  if (request.blocks() > full - request.first_block()) {
    return absl::InvalidArgumentError(absl::StrCat("blocks: ", request.blocks(), " from block ", request.first_block(),
                                                   " on, the tokens have ", full, " full blocks"));
  }
  const BlockRange range{.first = request.first_block(),
                         .end = request.blocks() == 0 ? full : request.first_block() + size_t{request.blocks()},
                         .accepted = LossyFormats(request.accepted_lossy_formats()),
                         .deadline = CallDeadline(context, *core_.options().clock)};
  const StreamCalls::Watch watch(calls_, context, range.deadline);
  std::vector<BlockPin> pins =
      named->group.number == 0 ? PinChain(core_, *named, *sources, range) : PinBeside(core_, *named, range);
  BlockStore& store = *named->group.store;
  std::vector<std::byte> buffer(static_cast<size_t>(store.device().layout().block_bytes));
  for (BlockPin& pin : pins) {
    const absl::StatusOr<BlockHeader> header = store.Read(pin, buffer);
    if (!header.ok()) return header.status();
    if (!WriteBlock(*header, buffer, piece_buffers_, write)) {
      return absl::CancelledError("GetBlocks: the caller went away");
    }
    pin.Reset();
  }
  return absl::OkStatus();
}

grpc::Status WorkerService::StreamFetchBlocks(grpc::ServerContext& context, const v1::FetchBlocksRequest& request,
                                              const PieceWriter& write) {
  SlowCallLog call("worker", "FetchBlocks", context, core_.options().slow_call);
  return call.Finish(fetch_server_.Serve(context, request, write));
}

}  // namespace kvmesh
