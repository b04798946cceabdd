#include "kvstore/pool/block_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kvstore/base/check.h"

namespace kvmesh {
namespace {

constexpr int64_t kSlotAlignment = 64;

}  // namespace

BlockPool::BlockPool(const KvPoolView& view) : view_(view), allocated_(static_cast<size_t>(view.slots)) {}

std::optional<BlockId> BlockPool::Allocate() {
  MutexLock lock(mu_);
  BlockId block;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (fresh_ < capacity()) {
    block = BlockId(fresh_++);
  } else {
    return std::nullopt;
  }
  allocated_[block.value()] = true;
  ++used_;
  return block;
}

void BlockPool::Free(BlockId block) {
  MutexLock lock(mu_);
  KVMESH_CHECK(block.value() < capacity() && allocated_[block.value()], "freed a slot that is not allocated");
  allocated_[block.value()] = false;
  free_.push_back(block);
  --used_;
}

uint32_t BlockPool::used() const {
  MutexLock lock(mu_);
  return used_;
}

std::span<std::byte> BlockPool::bytes(BlockId block) const {
  return {view_.base + block.value() * view_.slot_stride, static_cast<size_t>(view_.layout.block_bytes)};
}

absl::StatusOr<std::unique_ptr<MemoryPool>> MemoryPool::Create(const BlockLayout& layout, uint32_t slots) {
  if (layout.block_bytes <= 0 || layout.block_bytes > kMaxBlockBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_bytes: ", layout.block_bytes, ", must be 1 to ", kMaxBlockBytes));
  }
  if (slots == 0 || slots > (1u << 31)) {
    return absl::InvalidArgumentError(absl::StrCat("slots: ", slots, ", must be 1 to ", 1u << 31));
  }
  KvPoolView view;
  view.layout = layout;
  view.slots = slots;
  view.slot_stride = (layout.block_bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  const size_t bytes = static_cast<size_t>(view.slot_stride) * slots;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("block pool: cannot reserve ", bytes, " bytes: ", std::strerror(errno)));
  }
  view.base = static_cast<std::byte*>(memory);
  return std::unique_ptr<MemoryPool>(new MemoryPool(view, bytes));
}

MemoryPool::~MemoryPool() { munmap(view().base, mapped_bytes_); }

absl::Status MemoryPool::Write(BlockId block, std::span<const std::byte> from) {
  std::memcpy(bytes(block).data(), from.data(), static_cast<size_t>(layout().block_bytes));
  return absl::OkStatus();
}

absl::Status MemoryPool::Read(BlockId block, std::span<std::byte> to) const {
  std::memcpy(to.data(), bytes(block).data(), static_cast<size_t>(layout().block_bytes));
  return absl::OkStatus();
}

}  // namespace kvmesh
