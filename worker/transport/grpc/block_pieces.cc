#include "worker/transport/grpc/block_pieces.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

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

using google::protobuf::internal::WireFormatLite;

constexpr uint32_t Tag(int field, WireFormatLite::WireType type) { return static_cast<uint32_t>(field) << 3 | type; }

// An encoded BlockPiece with its payload left where it is.
struct EncodedPiece {
  std::string header;
  uint32_t payload_offset = 0;  // in the message
  uint32_t payload_bytes = 0;
  bool last = false;
};

// False: the bytes are no BlockPiece. As protobuf has it, the last of a repeated field counts and unknown ones are
// skipped.
bool Decode(grpc::ByteBuffer& message, EncodedPiece& out) {
  grpc::ProtoBufferReader reader(&message);
  if (!reader.status().ok()) return false;
  google::protobuf::io::CodedInputStream input(&reader);
  while (const uint32_t tag = input.ReadTag()) {
    uint32_t size = 0;
    switch (tag) {
      case Tag(v1::BlockPiece::kHeaderFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED):
        if (!input.ReadVarint32(&size) || !input.ReadString(&out.header, static_cast<int>(size))) return false;
        break;
      case Tag(v1::BlockPiece::kPayloadFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED):
        if (!input.ReadVarint32(&out.payload_bytes)) return false;
        out.payload_offset = static_cast<uint32_t>(input.CurrentPosition());
        if (!input.Skip(static_cast<int>(out.payload_bytes))) return false;
        break;
      case Tag(v1::BlockPiece::kLastFieldNumber, WireFormatLite::WIRETYPE_VARINT): {
        uint64_t value = 0;
        if (!input.ReadVarint64(&value)) return false;
        out.last = value != 0;
        break;
      }
      default:
        if (!WireFormatLite::SkipField(&input, tag)) return false;
    }
  }
  return input.ConsumedEntireMessage();
}

bool CopyPayload(grpc::ByteBuffer& message, const EncodedPiece& piece, std::byte* to) {
  grpc::ProtoBufferReader reader(&message);
  google::protobuf::io::CodedInputStream input(&reader);
  return reader.status().ok() && input.Skip(static_cast<int>(piece.payload_offset)) &&
         input.ReadRaw(to, static_cast<int>(piece.payload_bytes));
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

absl::Status BlockAssembler::BeginBlock(absl::string_view header_bytes) {
  if (completed_ == targets_.size()) return Malformed(completed_, "more blocks than asked for");
  if (header_bytes.empty()) return Malformed(completed_, "its first piece has no header");
  absl::StatusOr<BlockHeader> header =
      DecodeBlockHeader(std::as_bytes(std::span(header_bytes.data(), header_bytes.size())));
  if (!header.ok()) return header.status();
  if (header_bytes.size() != kBlockHeaderBytes) return Malformed(completed_, "bytes after the header");
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

absl::StatusOr<std::optional<BlockHeader>> BlockAssembler::TakeParts(absl::string_view header, size_t payload_bytes,
                                                                     bool last, Copy copy) {
  if (!current_) {
    KVMESH_RETURN_IF_ERROR(BeginBlock(header));
  } else if (!header.empty()) {
    return Malformed(completed_, "a second header before its last piece");
  }
  const std::span<std::byte> target = targets_[completed_];
  if (payload_bytes == 0) return Malformed(completed_, "a piece without payload");
  if (payload_bytes > kMaxPieceBytes) {
    return Malformed(completed_, absl::StrCat("a piece of ", payload_bytes, " bytes, at most ", kMaxPieceBytes));
  }
  if (payload_bytes > target.size() - filled_) return Malformed(completed_, "more payload than its header says");
  if (last != (filled_ + payload_bytes == target.size())) {
    return Malformed(completed_, last ? "less payload than its header says" : "not ended by its last piece");
  }
  if (!copy(target.data() + filled_)) return Malformed(completed_, "a payload that can't be read");
  filled_ += payload_bytes;
  bytes_ += payload_bytes;
  if (!last) return std::optional<BlockHeader>();
  ++completed_;
  previous_ = std::exchange(current_, std::nullopt);
  return previous_;
}

absl::StatusOr<std::optional<BlockHeader>> BlockAssembler::Take(const v1::BlockPiece& piece) {
  const std::string& payload = piece.payload();
  return TakeParts(piece.header(), payload.size(), piece.last(), [&payload](std::byte* to) {
    std::memcpy(to, payload.data(), payload.size());
    return true;
  });
}

absl::StatusOr<std::optional<BlockHeader>> BlockAssembler::Take(grpc::ByteBuffer& encoded) {
  EncodedPiece piece;
  if (!Decode(encoded, piece)) return Malformed(completed_, "a piece that does not decode");
  return TakeParts(piece.header, piece.payload_bytes, piece.last,
                   [&](std::byte* to) { return CopyPayload(encoded, piece, to); });
}

}  // namespace kvmesh
