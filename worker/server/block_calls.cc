// PutBlocks, GetBlocks, FetchBlocks: whole blocks in and out.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
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
  BlockIntake(BlockStore& store, const RootKey& root, std::vector<BlockKey> keys, uint32_t first, absl::Time deadline)
      : store_(store), root_(root), keys_(std::move(keys)), deadline_(deadline), next_(first) {}

  // Pins the chain before the first block. NOT_FOUND: it is not held here.
  absl::Status PinParents() {
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
                                    .lossy_formats = LossyFormats()};
    const BlockStore::Match held = store_.Lookup({&info.key, 1}, LossyFormats());
    absl::StatusOr<PrivateBlock> block = store_.Allocate(deadline_);
    if (!block.ok()) return block.status();
    KVMESH_RETURN_IF_ERROR(store_.device().Write(block->block(), buffer_));
    absl::StatusOr<BlockPin> pin = store_.Seal(*std::move(block), info);
    if (!pin.ok()) return pin.status();
    // The newest block's pin holds its ancestors.
    pins_.clear();
    pins_.push_back(*std::move(pin));
    (held.blocks[static_cast<size_t>(BlockSetKind::kMemory)] > 0 ? present_ : stored_) += 1;
    ++next_;
    return absl::OkStatus();
  }

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

}  // namespace

grpc::Status WorkerService::PutBlocks(grpc::ServerContext* context, grpc::ServerReader<v1::PutBlocksRequest>* reader,
                                      v1::PutBlocksResponse* response) {
  SlowCallLog call("worker", "PutBlocks", *context, core_.options().slow_call);
  return call.Finish(Put(*context, *reader, *response));
}

absl::Status WorkerService::Put(grpc::ServerContext& context, grpc::ServerReader<v1::PutBlocksRequest>& reader,
                                v1::PutBlocksResponse& response) {
  KVMESH_RETURN_IF_ERROR(CheckOpen());
  KVMESH_RETURN_IF_ERROR(core_.CheckWholeBlocks());
  const absl::Time deadline = CallDeadline(context, *core_.options().clock);
  const StreamCalls::Watch watch(calls_, context, deadline);
  v1::PutBlocksRequest request;
  if (!reader.Read(&request) || !request.has_open()) {
    return absl::InvalidArgumentError("open: must be the first message");
  }
  KVMESH_RETURN_IF_ERROR(CheckTokenCount(static_cast<uint64_t>(request.open().tokens_size()), "tokens"));
  const absl::StatusOr<RootKey> root = RootFor(context, request.open().identity());
  if (!root.ok()) return root.status();
  const std::vector<uint32_t> tokens(request.open().tokens().begin(), request.open().tokens().end());
  std::vector<BlockKey> keys = ComputeBlockKeys(RootAsParent(*root), tokens, request.open().identity().block_tokens());
  if (request.open().first_block() >= keys.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("first_block: ", request.open().first_block(), ", the tokens have ", keys.size(), " full blocks"));
  }
  BlockIntake intake(core_.store(), *root, std::move(keys), request.open().first_block(), deadline);
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
  KVMESH_RETURN_IF_ERROR(core_.CheckWholeBlocks());
  KVMESH_RETURN_IF_ERROR(CheckTokenCount(static_cast<uint64_t>(request.tokens_size()), "tokens"));
  const absl::StatusOr<RootKey> root = RootFor(context, request.identity());
  if (!root.ok()) return root.status();
  const absl::StatusOr<std::vector<PeerSource>> sources = SourcesFromProto(request.sources());
  if (!sources.ok()) return sources.status();
  const std::vector<uint32_t> tokens(request.tokens().begin(), request.tokens().end());
  const std::vector<BlockKey> keys = ComputeBlockKeys(RootAsParent(*root), tokens, request.identity().block_tokens());
  const absl::Time deadline = CallDeadline(context, *core_.options().clock);
  const StreamCalls::Watch watch(calls_, context, deadline);
  const CacheGroup chain = ChainGroup(core_.store());
  ResumeResult resumed = core_.resumer().Resume({.groups = {&chain, 1},
                                                 .root = *root,
                                                 .keys = keys,
                                                 .tokens = tokens.size(),
                                                 .sources = *sources,
                                                 .accepted = LossyFormats(request.accepted_lossy_formats()),
                                                 .deadline = deadline,
                                                 .sibling_deadline = absl::InfinitePast()});
  resumed.to_compute.Reset();
  std::vector<std::byte> buffer(static_cast<size_t>(core_.store().device().layout().block_bytes));
  for (size_t i = request.first_block(); i < resumed.blocks(); ++i) {
    BlockPin& pin = resumed.held[0][i].pin;
    const absl::StatusOr<BlockHeader> header = core_.store().Read(pin, buffer);
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
