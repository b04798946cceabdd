#include "worker/transport/grpc/block_pieces.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/base/check.h"

namespace kvmesh {
namespace {

absl::Status Malformed(size_t block, const absl::AlphaNum& what) {
  return absl::DataLossError(absl::StrCat("block ", block, " of the stream: ", what));
}

}  // namespace

bool WriteBlock(const BlockHeader& header, std::span<const std::byte> payload, size_t piece_bytes,
                v1::BlockPiece& scratch, const PieceWriter& write) {
  KVMESH_CHECK(!payload.empty() && piece_bytes >= 1 && piece_bytes <= kMaxPieceBytes, "a piece of no legal size");
  std::string& encoded = *scratch.mutable_header();
  encoded.resize(kBlockHeaderBytes);
  EncodeBlockHeader(
      header, std::span<std::byte, kBlockHeaderBytes>(reinterpret_cast<std::byte*>(encoded.data()), kBlockHeaderBytes));
  for (size_t offset = 0; offset < payload.size();) {
    const std::span<const std::byte> part = payload.subspan(offset, std::min(piece_bytes, payload.size() - offset));
    offset += part.size();
    scratch.mutable_payload()->assign(reinterpret_cast<const char*>(part.data()), part.size());
    scratch.set_last(offset == payload.size());
    if (!write(scratch)) return false;
    scratch.mutable_header()->clear();
  }
  return true;
}

absl::Status BlockAssembler::BeginBlock(const v1::BlockPiece& piece) {
  if (completed_ == targets_.size()) return Malformed(completed_, "more blocks than asked for");
  if (piece.header().empty()) return Malformed(completed_, "its first piece has no header");
  absl::StatusOr<BlockHeader> header =
      DecodeBlockHeader(std::as_bytes(std::span(piece.header().data(), piece.header().size())));
  if (!header.ok()) return header.status();
  if (piece.header().size() != kBlockHeaderBytes) return Malformed(completed_, "bytes after the header");
  if (header->layout != layout_) return Malformed(completed_, "sealed under another layout");
  if (header->payload_bytes != targets_[completed_].size()) {
    return Malformed(completed_, absl::StrCat("payload of ", header->payload_bytes, " bytes, the target has ",
                                              targets_[completed_].size()));
  }
  if (previous_ && (header->parent != previous_->key || header->root != previous_->root ||
                    header->start_position <= previous_->start_position)) {
    return Malformed(completed_, "it does not follow the block before");
  }
  current_ = *header;
  filled_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<BlockHeader>> BlockAssembler::Take(const v1::BlockPiece& piece) {
  if (!current_) {
    KVMESH_RETURN_IF_ERROR(BeginBlock(piece));
  } else if (!piece.header().empty()) {
    return Malformed(completed_, "a second header before its last piece");
  }
  const std::string& payload = piece.payload();
  const std::span<std::byte> target = targets_[completed_];
  if (payload.empty()) return Malformed(completed_, "a piece without payload");
  if (payload.size() > kMaxPieceBytes) {
    return Malformed(completed_, absl::StrCat("a piece of ", payload.size(), " bytes, at most ", kMaxPieceBytes));
  }
  if (payload.size() > target.size() - filled_) return Malformed(completed_, "more payload than its header says");
  if (piece.last() != (filled_ + payload.size() == target.size())) {
    return Malformed(completed_, piece.last() ? "less payload than its header says" : "not ended by its last piece");
  }
  std::memcpy(target.data() + filled_, payload.data(), payload.size());
  filled_ += payload.size();
  bytes_ += payload.size();
  if (!piece.last()) return std::optional<BlockHeader>();
  ++completed_;
  previous_ = std::exchange(current_, std::nullopt);
  return previous_;
}

}  // namespace kvmesh
