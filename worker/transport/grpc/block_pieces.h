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

#include "absl/strings/string_view.h"
#include "kvstore/base/status.h"
#include "kvstore/block/block_header.h"
#include "worker/transport/grpc/piece_buffers.h"

namespace kvmesh {

inline constexpr size_t kMaxPieceBytes = size_t{1} << 20;

// Sends one piece, an encoded v1::BlockPiece; false when the receiver is gone.
using PieceWriter = std::function<bool(const grpc::ByteBuffer&)>;

// Writes one block in pieces that each fill a buffer. Returns false as soon as `write` does. REQUIRES: payload not
// empty, buffers of at most kMaxPieceBytes.
bool WriteBlock(const BlockHeader& header, std::span<const std::byte> payload, PieceBuffers& buffers,
                const PieceWriter& write);

// Writes pieces into the targets of one transfer, in order. Never writes outside a target. Checks the form of the
// stream, not the blocks' checksums. Not thread safe.
class BlockAssembler {
 public:
  // One target per expected block; their memory outlives this object.
  BlockAssembler(const LayoutFingerprint& layout, std::vector<std::span<std::byte>> targets)
      : layout_(layout), targets_(std::move(targets)) {}

  // Takes the next piece, an encoded v1::BlockPiece; its payload is copied once, from gRPC's buffer to the target.
  // Returns the header of the block that it completes, if it does. DATA_LOSS naming what is wrong: a piece that does
  // not decode, a header that is missing, repeated or does not decode, another layout or payload size, a block that
  // does not follow the one before, a payload that is empty, too large, or more or less than its header says, or more
  // blocks than targets. After an error the stream is of no use.
  absl::StatusOr<std::optional<BlockHeader>> Take(grpc::ByteBuffer& encoded);

  // All targets are filled.
  bool complete() const { return completed_ == targets_.size(); }
  size_t completed() const { return completed_; }
  // Payload bytes written.
  size_t bytes() const { return bytes_; }

 private:
  absl::Status BeginBlock(absl::string_view header);

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
