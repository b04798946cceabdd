#include "worker/transport/grpc/piece_buffers.h"

#include <cstring>
#include <utility>
#include <vector>

#include "kvstore/base/check.h"
#include "kvstore/base/mutex.h"

namespace kvmesh {

struct PieceBuffers::Buffer {
  std::unique_ptr<std::byte[]> bytes;
  std::shared_ptr<State> state;  // where it returns to; null while idle
};

struct PieceBuffers::State {
  explicit State(size_t max_idle_buffers) : max_idle(max_idle_buffers) {}
  const size_t max_idle;
  Mutex mu;
  std::vector<std::unique_ptr<Buffer>> idle ABSL_GUARDED_BY(mu);
};

PieceBuffers::PieceBuffers(size_t piece_bytes, size_t max_idle)
    : piece_bytes_(piece_bytes), state_(std::make_shared<State>(max_idle)) {
  KVMESH_CHECK(piece_bytes >= 1, "pieces of no bytes");
}

PieceBuffers::~PieceBuffers() = default;

grpc::Slice PieceBuffers::Copy(std::span<const std::byte> payload) {
  KVMESH_CHECK(payload.size() <= piece_bytes_, "a payload larger than a piece");
  std::unique_ptr<Buffer> buffer;
  {
    MutexLock lock(state_->mu);
    if (!state_->idle.empty()) {
      buffer = std::move(state_->idle.back());
      state_->idle.pop_back();
    }
  }
  if (buffer == nullptr) {
    buffer = std::make_unique<Buffer>();
    buffer->bytes = std::make_unique_for_overwrite<std::byte[]>(piece_bytes_);
  }
  buffer->state = state_;
  std::memcpy(buffer->bytes.get(), payload.data(), payload.size());
  Buffer* const lent = buffer.release();
  return grpc::Slice(lent->bytes.get(), payload.size(), Return, lent);
}

void PieceBuffers::Return(void* lent) {
  std::unique_ptr<Buffer> buffer(static_cast<Buffer*>(lent));
  const std::shared_ptr<State> state = std::move(buffer->state);
  MutexLock lock(state->mu);
  if (state->idle.size() < state->max_idle) state->idle.push_back(std::move(buffer));
}

size_t PieceBuffers::idle() const {
  MutexLock lock(state_->mu);
  return state_->idle.size();
}

}  // namespace kvmesh
