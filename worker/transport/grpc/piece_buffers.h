// Memory for payloads on their way out, used again and again: fresh memory costs a page fault for every 4 KiB.
#ifndef KVMESH_WORKER_TRANSPORT_GRPC_PIECE_BUFFERS_H_
#define KVMESH_WORKER_TRANSPORT_GRPC_PIECE_BUFFERS_H_

#include <grpcpp/support/slice.h>

#include <cstddef>
#include <memory>
#include <span>

namespace kvmesh {

// Buffers of one size. gRPC holds a buffer until its bytes are sent or the call is dropped; then it is kept for the
// next piece, unless `max_idle` are kept already. Slices may outlive this object. Thread safe.
class PieceBuffers {
 public:
  // REQUIRES: piece_bytes >= 1.
  explicit PieceBuffers(size_t piece_bytes, size_t max_idle = 32);
  // Frees the idle ones.
  ~PieceBuffers();

  size_t piece_bytes() const { return piece_bytes_; }
  // A copy of the payload. REQUIRES: payload.size() <= piece_bytes().
  grpc::Slice Copy(std::span<const std::byte> payload);
  // Buffers that no slice uses.
  size_t idle() const;

 private:
  struct Buffer;
  struct State;
  static void Return(void* buffer);

  const size_t piece_bytes_;
  const std::shared_ptr<State> state_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_TRANSPORT_GRPC_PIECE_BUFFERS_H_
