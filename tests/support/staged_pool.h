// A device pool whose memory the host can't address, as on a GPU: bytes come and go through Read and Write only. Fails
// or stalls where a test says.
#ifndef KVMESH_TESTS_SUPPORT_STAGED_POOL_H_
#define KVMESH_TESTS_SUPPORT_STAGED_POOL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "kvstore/pool/block_pool.h"
#include "tests/support/gate.h"

namespace kvmesh {

// Thread safe; a slot is copied by one thread at a time.
class StagedPool : public BlockPool {
 public:
  using Fault = std::function<absl::Status()>;  // the error of one copy, or OK to let it pass

  StagedPool(const BlockLayout& layout, uint32_t slots)
      : BlockPool(View(layout, slots)),
        slots_(slots, std::vector<std::byte>(static_cast<size_t>(layout.block_bytes))) {}

  MemoryKind memory_kind() const override { return MemoryKind::kCuda; }
  absl::Status Write(BlockId block, std::span<const std::byte> from) override {
    write_gate.Pass();
    if (absl::Status status = Ask(write_fault_); !status.ok()) return status;
    std::copy_n(from.begin(), slots_[block.value()].size(), slots_[block.value()].begin());
    return absl::OkStatus();
  }
  absl::Status Read(BlockId block, std::span<std::byte> to) const override {
    if (absl::Status status = Ask(read_fault_); !status.ok()) return status;
    std::copy(slots_[block.value()].begin(), slots_[block.value()].end(), to.begin());
    return absl::OkStatus();
  }

  void SetWriteFault(Fault fault) {
    MutexLock lock(mu_);
    write_fault_ = std::move(fault);
  }
  void SetReadFault(Fault fault) {
    MutexLock lock(mu_);
    read_fault_ = std::move(fault);
  }

  Gate write_gate;

 private:
  // Without an address: whoever dereferences one fails at once.
  static KvPoolView View(const BlockLayout& layout, uint32_t slots) {
    return {.slot_stride = layout.block_bytes, .slots = slots, .layout = layout};
  }
  absl::Status Ask(const Fault& fault) const {
    MutexLock lock(mu_);
    return fault == nullptr ? absl::OkStatus() : fault();
  }

  mutable Mutex mu_;
  Fault write_fault_;
  Fault read_fault_;
  std::vector<std::vector<std::byte>> slots_;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SUPPORT_STAGED_POOL_H_
