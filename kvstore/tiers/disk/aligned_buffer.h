// Buffers for direct I/O, kept for reuse: a fresh multi-megabyte allocation costs more in page faults than its copy.
#ifndef KVMESH_KVSTORE_TIERS_DISK_ALIGNED_BUFFER_H_
#define KVMESH_KVSTORE_TIERS_DISK_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kvstore/base/mutex.h"

namespace kvmesh {

class AlignedBufferPool;

// Borrowed from a pool, which must outlive it. Aligned to a disk page; contents are left over from earlier use.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), data_(std::exchange(other.data_, nullptr)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  std::byte* data() const { return data_; }

 private:
  friend class AlignedBufferPool;
  AlignedBuffer(AlignedBufferPool* pool, std::byte* data) : pool_(pool), data_(data) {}

  AlignedBufferPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
};

// Thread safe. Keeps at most `max_idle` buffers that nobody uses.
class AlignedBufferPool {
 public:
  // REQUIRES: buffer_bytes is a positive multiple of kDiskPageBytes.
  AlignedBufferPool(size_t buffer_bytes, size_t max_idle) : buffer_bytes_(buffer_bytes), max_idle_(max_idle) {}
  ~AlignedBufferPool();
  AlignedBufferPool(const AlignedBufferPool&) = delete;
  AlignedBufferPool& operator=(const AlignedBufferPool&) = delete;

  AlignedBuffer Take();

 private:
  friend class AlignedBuffer;
  void Return(std::byte* data);

  const size_t buffer_bytes_;
  const size_t max_idle_;
  Mutex mu_;
  std::vector<std::byte*> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_DISK_ALIGNED_BUFFER_H_
