#include "kvstore/tiers/disk/aligned_buffer.h"

#include "kvstore/base/check.h"
#include "kvstore/tiers/disk/file_io.h"

namespace kvmesh {

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) pool_->Return(data_);
    pool_ = std::exchange(other.pool_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
  }
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) pool_->Return(data_);
}

AlignedBufferPool::~AlignedBufferPool() {
  MutexLock lock(mu_);
  for (std::byte* data : idle_) std::free(data);
}

AlignedBuffer AlignedBufferPool::Take() {
  {
    MutexLock lock(mu_);
    if (!idle_.empty()) {
      std::byte* data = idle_.back();
      idle_.pop_back();
      return AlignedBuffer(this, data);
    }
  }
  void* data = std::aligned_alloc(kDiskPageBytes, buffer_bytes_);
  KVMESH_CHECK(data != nullptr, "out of memory");
  return AlignedBuffer(this, static_cast<std::byte*>(data));
}

void AlignedBufferPool::Return(std::byte* data) {
  {
    MutexLock lock(mu_);
    if (idle_.size() < max_idle_) {
      idle_.push_back(data);
      return;
    }
  }
  std::free(data);
}

}  // namespace kvmesh
