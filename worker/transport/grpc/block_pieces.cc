#include "worker/transport/grpc/block_pieces.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvmesh/v1/worker.pb.h"
#include "kvstore/base/check.h"

namespace kvmesh {
namespace {

absl::Status Malformed(size_t block, const absl::AlphaNum& what) {
  return absl::DataLossError(absl::StrCat("block ", block, " of the stream: ", what));
}

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr int kHeaderField = v1::BlockPiece::kHeaderFieldNumber;
constexpr int kPayloadField = v1::BlockPiece::kPayloadFieldNumber;
constexpr int kLastField = v1::BlockPiece::kLastFieldNumber;
constexpr WireFormatLite::WireType kLengthDelimited = WireFormatLite::WIRETYPE_LENGTH_DELIMITED;

constexpr uint32_t Tag(int field, WireFormatLite::WireType type) { return static_cast<uint32_t>(field) << 3 | type; }

// What of a piece comes before its payload's bytes: three tags, a header, a flag and two lengths.
constexpr size_t kMaxPrefixBytes = kBlockHeaderBytes + 16;

// `header` is null unless the piece is its block's first.
grpc::Slice EncodePrefix(const BlockHeader* header, size_t payload_bytes, bool last) {
  uint8_t prefix[kMaxPrefixBytes];
  uint8_t* end = prefix;
  if (header != nullptr) {
    end = WireFormatLite::WriteTagToArray(kHeaderField, kLengthDelimited, end);
    end = CodedOutputStream::WriteVarint32ToArray(kBlockHeaderBytes, end);
    EncodeBlockHeader(*header,
                      std::span<std::byte, kBlockHeaderBytes>(reinterpret_cast<std::byte*>(end), kBlockHeaderBytes));
    end += kBlockHeaderBytes;
  }
  if (last) end = WireFormatLite::WriteBoolToArray(kLastField, true, end);
  end = WireFormatLite::WriteTagToArray(kPayloadField, kLengthDelimited, end);
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(payload_bytes), end);
  return grpc::Slice(prefix, static_cast<size_t>(end - prefix));
}

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
  CodedInputStream input(&reader);
  while (const uint32_t tag = input.ReadTag()) {
    uint32_t size = 0;
    switch (tag) {
      case Tag(kHeaderField, kLengthDelimited):
        if (!input.ReadVarint32(&size) || !input.ReadString(&out.header, static_cast<int>(size))) return false;
        break;
      case Tag(kPayloadField, kLengthDelimited):
        if (!input.ReadVarint32(&out.payload_bytes)) return false;
        out.payload_offset = static_cast<uint32_t>(input.CurrentPosition());
        if (!input.Skip(static_cast<int>(out.payload_bytes))) return false;
        break;
      case Tag(kLastField, WireFormatLite::WIRETYPE_VARINT): {
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
  CodedInputStream input(&reader);
  return reader.status().ok() && input.Skip(static_cast<int>(piece.payload_offset)) &&
         input.ReadRaw(to, static_cast<int>(piece.payload_bytes));
}

}  // namespace

bool WriteBlock(const BlockHeader& header, std::span<const std::byte> payload, PieceBuffers& buffers,
                const PieceWriter& write) {
  const size_t piece_bytes = buffers.piece_bytes();
  KVMESH_CHECK(!payload.empty() && piece_bytes <= kMaxPieceBytes, "a piece of no legal size");
  for (size_t offset = 0; offset < payload.size();) {
    const std::span<const std::byte> part = payload.subspan(offset, std::min(piece_bytes, payload.size() - offset));
    const bool first = offset == 0;
    offset += part.size();
    const grpc::Slice slices[] = {EncodePrefix(first ? &header : nullptr, part.size(), offset == payload.size()),
                                  buffers.Copy(part)};
    if (!write(grpc::ByteBuffer(slices, std::size(slices)))) return false;
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

absl::StatusOr<std::optional<BlockHeader>> BlockAssembler::Take(grpc::ByteBuffer& encoded) {
  EncodedPiece piece;
  if (!Decode(encoded, piece)) return Malformed(completed_, "a piece that does not decode");
  if (!current_) {
    KVMESH_RETURN_IF_ERROR(BeginBlock(piece.header));
  } else if (!piece.header.empty()) {
    return Malformed(completed_, "a second header before its last piece");
  }
  const std::span<std::byte> target = targets_[completed_];
  if (piece.payload_bytes == 0) return Malformed(completed_, "a piece without payload");
  if (piece.payload_bytes > kMaxPieceBytes) {
    return Malformed(completed_, absl::StrCat("a piece of ", piece.payload_bytes, " bytes, at most ", kMaxPieceBytes));
  }
  if (piece.payload_bytes > target.size() - filled_) return Malformed(completed_, "more payload than its header says");
  if (piece.last != (filled_ + piece.payload_bytes == target.size())) {
    return Malformed(completed_, piece.last ? "less payload than its header says" : "not ended by its last piece");
  }
  if (!CopyPayload(encoded, piece, target.data() + filled_)) {
    return Malformed(completed_, "a payload that can't be read");
  }
  filled_ += piece.payload_bytes;
  bytes_ += piece.payload_bytes;
  if (!piece.last) return std::optional<BlockHeader>();
  ++completed_;
  previous_ = std::exchange(current_, std::nullopt);
  return previous_;
}

}  // namespace kvmesh
