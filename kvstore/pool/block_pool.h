// Slots of memory that hold one block each: the device pool, and the host arena below it.
#ifndef KVMESH_KVSTORE_POOL_BLOCK_POOL_H_
#define KVMESH_KVSTORE_POOL_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/kv_pool_view.h"
#include "kernels/layout.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"
#include "kvstore/base/strong_int.h"

namespace kvmesh {

// Where the bytes lie; a kCuda pool's addresses are not dereferenceable on the host.
enum class MemoryKind { kHost, kCuda };

// Allocates slots; the subclass owns the memory and knows how to copy. Thread safe. The content of a slot belongs to
// whoever allocated it.
class BlockPool {
 public:
  virtual ~BlockPool() = default;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  virtual MemoryKind memory_kind() const = 0;
  // Copies a whole block into or out of a slot and returns when the bytes are complete. INTERNAL: the device failed.
  // REQUIRES: the slot is allocated, the span has layout().block_bytes.
  virtual absl::Status Write(BlockId block, std::span<const std::byte> from) = 0;
  virtual absl::Status Read(BlockId block, std::span<std::byte> to) const = 0;

  // A free slot, or nullopt when all are taken.
  std::optional<BlockId> Allocate();
  // REQUIRES: allocated.
  void Free(BlockId block);

  const BlockLayout& layout() const { return view_.layout; }
  const KvPoolView& view() const { return view_; }
  uint32_t capacity() const { return static_cast<uint32_t>(view_.slots); }
  uint32_t used() const;

  // The slot's bytes. REQUIRES: memory_kind() == kHost.
  std::span<std::byte> bytes(BlockId block) const;

 protected:
  explicit BlockPool(const KvPoolView& view);

 private:
  const KvPoolView view_;
  mutable Mutex mu_;
  std::vector<BlockId> free_ ABSL_GUARDED_BY(mu_);  // returned slots, last in first out
  uint32_t fresh_ ABSL_GUARDED_BY(mu_) = 0;         // slots from here on were never used
  uint32_t used_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<bool> allocated_ ABSL_GUARDED_BY(mu_);
};

// Plain memory, reserved at once and touched as slots are used.
class MemoryPool : public BlockPool {
 public:
  // INVALID_ARGUMENT: a layout without size or above kMaxBlockBytes, no slots, or more than 2^31. RESOURCE_EXHAUSTED:
  // the address space can't be reserved.
  static absl::StatusOr<std::unique_ptr<MemoryPool>> Create(const BlockLayout& layout, uint32_t slots);
  ~MemoryPool() override;

  MemoryKind memory_kind() const override { return MemoryKind::kHost; }
  absl::Status Write(BlockId block, std::span<const std::byte> from) override;
  absl::Status Read(BlockId block, std::span<std::byte> to) const override;

 private:
  MemoryPool(const KvPoolView& view, size_t mapped_bytes) : BlockPool(view), mapped_bytes_(mapped_bytes) {}
  const size_t mapped_bytes_;
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_POOL_BLOCK_POOL_H_
