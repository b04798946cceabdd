// How a block is cut into pieces for a gRPC stream, and put together again in its target.
//
// A block is one or more pieces in order: the encoded header comes with the first, every piece carries 1 to
// kMaxPieceBytes bytes of payload, `last` completes the block. Pieces of two blocks never mix.
#ifndef KVMESH_WORKER_TRANSPORT_GRPC_BLOCK_PIECES_H_
#define KVMESH_WORKER_TRANSPORT_GRPC_BLOCK_PIECES_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "kvmesh/v1/worker.pb.h"
#include "kvstore/base/status.h"
#include "kvstore/block/block_header.h"

namespace kvmesh {

inline constexpr size_t kMaxPieceBytes = size_t{1} << 20;

// Sends one piece; false when the receiver is gone. The piece is the caller's again when it returns.
using PieceWriter = std::function<bool(const v1::BlockPiece&)>;

// Writes one block in pieces of at most `piece_bytes`. `scratch` is overwritten; reusing it saves allocations. Returns
// false as soon as `write` does. REQUIRES: payload not empty, 1 <= piece_bytes <= kMaxPieceBytes.
bool WriteBlock(const BlockHeader& header, std::span<const std::byte> payload, size_t piece_bytes,
                v1::BlockPiece& scratch, const PieceWriter& write);

// Writes pieces into the targets of one transfer, in order. Never writes outside a target. Checks the form of the
// stream, not the blocks' checksums. Not thread safe.
class BlockAssembler {
 public:
  // One target per expected block; their memory outlives this object.
  BlockAssembler(const LayoutFingerprint& layout, std::vector<std::span<std::byte>> targets)
      : layout_(layout), targets_(std::move(targets)) {}

  // Takes the next piece; returns the header of the block that it completes, if it does. DATA_LOSS naming what is
  // wrong: a header that is missing, repeated or does not decode, another layout or payload size, a block that does not
  // follow the one before, a payload that is empty, too large, or more or less than its header says, or more blocks
  // than targets. After an error the stream is of no use.
  absl::StatusOr<std::optional<BlockHeader>> Take(const v1::BlockPiece& piece);
  // The same for an encoded BlockPiece; its payload is copied once, from gRPC's buffer to the target. DATA_LOSS also
  // when it does not decode.
  absl::StatusOr<std::optional<BlockHeader>> Take(grpc::ByteBuffer& encoded);

  // All targets are filled.
  bool complete() const { return completed_ == targets_.size(); }
  size_t completed() const { return completed_; }
  // Payload bytes written.
  size_t bytes() const { return bytes_; }

 private:
  // Copies a payload, whose size is known, to where it belongs. False: it could not be read.
  using Copy = absl::FunctionRef<bool(std::byte* to)>;

  absl::Status BeginBlock(absl::string_view header);
  absl::StatusOr<std::optional<BlockHeader>> TakeParts(absl::string_view header, size_t payload_bytes, bool last,
                                                       Copy copy);

  const LayoutFingerprint layout_;
  const std::vector<std::span<std::byte>> targets_;
  size_t completed_ = 0;
  size_t bytes_ = 0;
  size_t filled_ = 0;                   // bytes of the current block
  std::optional<BlockHeader> current_;  // begun, not complete
  std::optional<BlockHeader> previous_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_TRANSPORT_GRPC_BLOCK_PIECES_H_
