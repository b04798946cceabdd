// A DiskTier in memory: bounded, verified as the real one, and it fails or stalls where a test says.
#ifndef KVMESH_TESTS_SUPPORT_MEMORY_DISK_TIER_H_
#define KVMESH_TESTS_SUPPORT_MEMORY_DISK_TIER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "kvstore/base/mutex.h"
#include "kvstore/tiers/disk_tier.h"
#include "tests/support/gate.h"

namespace kvmesh {

// Outlives stores: what is held when a store ends is what the next one recovers. Fails the test when a slot is erased
// that is not held or is being read, and when two writes of one key overlap. Thread safe.
class MemoryDiskTier : public DiskTier {
 public:
  // Returns the error of one operation, or OK to let it pass.
  using Fault = std::function<absl::Status(const BlockHeader& header)>;

  explicit MemoryDiskTier(uint64_t capacity_blocks) : capacity_(capacity_blocks) {}

  absl::StatusOr<DiskSlot> Write(const BlockHeader& header, std::span<const std::byte> payload) override {
    {
      MutexLock lock(mu_);
      EXPECT_TRUE(writing_.insert(FoundUnder(header)).second)
          << "block " << header.key.ToHex() << " is written twice at once";
    }
    write_gate.Pass();
    MutexLock lock(mu_);
    writing_.erase(FoundUnder(header));
    ++writes_;
    if (write_fault_ != nullptr) {
      if (absl::Status status = write_fault_(header); !status.ok()) {
        if (absl::IsUnavailable(status)) ++io_errors_;
        return status;
      }
    }
    if (slots_.size() >= capacity_) return absl::ResourceExhaustedError("disk: full");
    const DiskSlot slot(next_slot_++);
    slots_[slot] = {header, {payload.begin(), payload.end()}};
    return slot;
  }

  void Read(std::span<ReadRequest> requests) override {
    {
      MutexLock lock(mu_);
      for (const ReadRequest& request : requests) ++reading_[request.slot];
    }
    read_gate.Pass();
    MutexLock lock(mu_);
    for (ReadRequest& request : requests) {
      ++reads_;
      request.status = ReadOne(request);
      if (--reading_[request.slot] == 0) reading_.erase(request.slot);
    }
  }

  void Erase(DiskSlot slot) override {
    MutexLock lock(mu_);
    EXPECT_FALSE(reading_.contains(slot)) << "slot " << slot.value() << " erased while it is read";
    EXPECT_EQ(slots_.erase(slot), 1u) << "slot " << slot.value() << " erased but not held";
  }

  void FinishErases() override {}

  std::vector<RecoveredBlock> TakeRecovered() override {
    MutexLock lock(mu_);
    std::vector<RecoveredBlock> out;
    // Newest first: recovery promises no order.
    for (auto it = slots_.rbegin(); it != slots_.rend(); ++it) out.push_back({it->second.header, it->first});
    return out;
  }

  Usage usage() const override {
    MutexLock lock(mu_);
    return {.capacity_blocks = capacity_, .used_blocks = slots_.size(), .io_errors = io_errors_};
  }

  // Asked before each operation, under this tier's lock; null: none.
  void SetWriteFault(Fault fault) {
    MutexLock lock(mu_);
    write_fault_ = std::move(fault);
  }
  void SetReadFault(Fault fault) {
    MutexLock lock(mu_);
    read_fault_ = std::move(fault);
  }
  // Flips a byte of the held block.
  void Corrupt(const BlockKey& key, size_t byte) {
    MutexLock lock(mu_);
    size_t found = 0;
    for (auto& [slot, held] : slots_) {
      if (FoundUnder(held.header) != key) continue;
      ++found;
      held.payload.at(byte) ^= std::byte{1};
    }
    EXPECT_EQ(found, 1u) << key.ToHex();
  }
  // Takes the block away without the store's knowledge, as a crash may; only between stores.
  void Vanish(const BlockKey& key) {
    MutexLock lock(mu_);
    std::erase_if(slots_, [&key](const auto& slot) { return FoundUnder(slot.second.header) == key; });
  }
  // Holds a block that no store wrote.
  void Plant(const BlockHeader& header, std::span<const std::byte> payload) {
    MutexLock lock(mu_);
    slots_[DiskSlot(next_slot_++)] = {header, {payload.begin(), payload.end()}};
  }
  bool Holds(const BlockKey& key) const {
    MutexLock lock(mu_);
    return std::any_of(slots_.begin(), slots_.end(),
                       [&key](const auto& s) { return FoundUnder(s.second.header) == key; });
  }
  // Operations so far, failed ones included; `reads` counts blocks.
  uint64_t reads() const {
    MutexLock lock(mu_);
    return reads_;
  }
  uint64_t writes() const {
    MutexLock lock(mu_);
    return writes_;
  }

  // Each Write, and each batch of Read, passes here first.
  Gate write_gate;
  Gate read_gate;

 private:
  struct Held {
    BlockHeader header;
    std::vector<std::byte> payload;
  };

  absl::Status ReadOne(const ReadRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (read_fault_ != nullptr) {
      if (absl::Status status = read_fault_(request.expected); !status.ok()) {
        if (absl::IsUnavailable(status)) ++io_errors_;
        return status;
      }
    }
    const auto it = slots_.find(request.slot);
    if (it == slots_.end() || it->second.header != request.expected) return absl::DataLossError("disk: another header");
    const std::vector<std::byte>& payload = it->second.payload;
    std::copy(payload.begin(), payload.end(), request.out.begin());
    return VerifyBlock(request.expected, request.out);
  }

  const uint64_t capacity_;
  mutable Mutex mu_;
  std::map<DiskSlot, Held> slots_ ABSL_GUARDED_BY(mu_);
  std::map<DiskSlot, uint32_t> reading_ ABSL_GUARDED_BY(mu_);
  std::set<BlockKey> writing_ ABSL_GUARDED_BY(mu_);
  uint64_t next_slot_ ABSL_GUARDED_BY(mu_) = 0;
  Fault write_fault_ ABSL_GUARDED_BY(mu_);
  Fault read_fault_ ABSL_GUARDED_BY(mu_);
  uint64_t reads_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t writes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t io_errors_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SUPPORT_MEMORY_DISK_TIER_H_
