// Making room: device leaves go to the host, memory's leaves to disk (roots first), the disk's leaves away.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "kvstore/base/mutex_unlock.h"
#include "kvstore/tiers/block_store.h"

namespace kvmesh {
namespace {

// A victim may come in use or gain a child while its bytes are copied; then another one is tried, this often.
constexpr int kEvictionAttempts = 32;
// Room that another thread is making is awaited in steps of this, this long in all.
constexpr absl::Duration kRoomWait = absl::Milliseconds(10);
constexpr absl::Duration kRoomTimeout = absl::Seconds(10);
// Disk blocks evicted to make room for one write before it is given up.
constexpr int kDiskEvictions = 8;

}  // namespace

std::optional<BlockId> BlockStore::AllocateDevice(MutexLock& lock, absl::Time deadline) {
  const absl::Time give_up = absl::Now() + kRoomTimeout;
  for (int attempt = 0; attempt < kEvictionAttempts;) {
    if (const std::optional<BlockId> block = device_->Allocate()) return block;
    const absl::Duration left = deadline - clock_->Now();
    if (left <= absl::ZeroDuration()) return std::nullopt;
    if (BlockCopy* victim = map_.Victim(Tier::kDevice)) {
      EvictDevice(lock, victim, deadline);
      ++attempt;
    } else if (evictions_in_flight_ > 0 && absl::Now() < give_up) {
      changed_.WaitFor(lock, std::min(kRoomWait, left));
    } else {
      return std::nullopt;
    }
  }
  return device_->Allocate();
}

std::optional<BlockId> BlockStore::AllocateHost(MutexLock& lock, absl::Time deadline) {
  for (int attempt = 0; attempt < kEvictionAttempts; ++attempt) {
    if (const std::optional<BlockId> block = host_->Allocate()) return block;
    BlockCopy* victim = map_.Victim(Tier::kHost);
    if (victim == nullptr) return std::nullopt;
    map_.Guard(victim);
    EvictFromMemory(lock, victim, deadline);
  }
  return host_->Allocate();
}

void BlockStore::EvictDevice(MutexLock& lock, BlockCopy* victim, absl::Time deadline) {
  const BlockCopy* below = victim->node->copy(Tier::kHost);
  if (below != nullptr && !Improves(*victim->node, victim->header.lossy_formats, Tier::kHost)) {  // nothing to move
    map_.Evict(victim);
    ++evictions_[static_cast<size_t>(Tier::kDevice)];
    return;
  }
  map_.Guard(victim);
  ++evictions_in_flight_;
  std::optional<BlockId> host_slot;
  if (host_ != nullptr) host_slot = AllocateHost(lock, deadline);
  if (host_slot) {
    DemoteToHost(lock, victim, *host_slot);
  } else {
    EvictFromMemory(lock, victim, deadline);
  }
  --evictions_in_flight_;
  changed_.NotifyAll();
}

// REQUIRES: the caller guards `victim`, and passes that guard on.
void BlockStore::DemoteToHost(MutexLock& lock, BlockCopy* victim, BlockId host_slot) {
  absl::StatusOr<BlockHeader> made = victim->header;
  {
    MutexUnlock unlocked(mu_, lock);
    std::vector<std::byte> buffer;
    const absl::StatusOr<std::span<const std::byte>> bytes = MemoryBytes(*victim, buffer);
    made = bytes.ok() ? layouts_.Move(victim->header, Tier::kDevice, *bytes, Tier::kHost, host_->bytes(host_slot))
                      : bytes.status();
  }

  BlockNode* node = victim->node;
  if (!made.ok()) Lose(victim, absl::IsDataLoss(made.status()) ? MissReason::kCorrupt : MissReason::kIoError);
  const bool still_leaf = made.ok() && node != nullptr && victim->pins == 0 && victim->guards == 1 &&
                          node->children_in[static_cast<size_t>(BlockSetKind::kDevice)] == 0;
  if (!still_leaf || !map_.Add(*made, node->index, Tier::kHost, host_slot.value()).ok()) {
    host_->Free(host_slot);
    map_.Unguard(victim);
    return;
  }
  map_.Unguard(victim);
  map_.Evict(victim);
  ++evictions_[static_cast<size_t>(Tier::kDevice)];
  CountDemotion(*made, Tier::kHost);
}

void BlockStore::CountDemotion(const BlockHeader& made, Tier to) {
  demoted_bytes_[static_cast<size_t>(to)] += made.payload_bytes;
  if (!made.lossy_formats.exact()) ++lossy_demotions_[static_cast<size_t>(to)];
}

bool BlockStore::Improves(const BlockNode& node, LossyFormats lossy_formats, Tier tier) const {
  const BlockCopy* held = node.copy(tier);
  if (held == nullptr) return true;
  const LossyFormats made = layouts_.AfterMove(lossy_formats, tier);
  return made != held->header.lossy_formats && made.SubsetOf(held->header.lossy_formats);
}

bool BlockStore::DiskWants(const BlockNode& node) const {
  const BlockCopy* source = node.CopyFor(BlockSetKind::kMemory);
  return source != nullptr && Improves(node, source->header.lossy_formats, Tier::kDisk);
}

// REQUIRES: as DemoteToHost. What is not on disk by the deadline is dropped.
void BlockStore::EvictFromMemory(MutexLock& lock, BlockCopy* victim, absl::Time deadline) {
  if (disk_ != nullptr && victim->node != nullptr) WriteChainToDisk(lock, victim->node, deadline);
  const Tier tier = victim->tier;
  const bool attached = victim->node != nullptr;
  map_.Unguard(victim);
  if (!attached || !map_.CanEvict(*victim)) return;
  map_.Evict(victim);
  ++evictions_[static_cast<size_t>(tier)];
}

void BlockStore::WriteChainToDisk(MutexLock& lock, BlockNode* node, absl::Time deadline) {
  // By key, since the chain may change while a block is written.
  std::vector<BlockKey> keys;
  for (; !node->is_root && DiskWants(*node); node = node->parent) keys.push_back(node->key);
  DiskPayload payload;
  for (auto it = keys.rbegin(); it != keys.rend(); ++it) {
    if (clock_->Now() >= deadline || !WriteOneToDisk(lock, *it, deadline, payload)) return;
  }
}

bool BlockStore::WaitToWrite(MutexLock& lock, const BlockKey& key, absl::Time deadline) {
  while (writing_.contains(key)) {
    const absl::Duration left = deadline - clock_->Now();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitFor(lock, std::min(kRoomWait, left));
  }
  return true;
}

absl::Status BlockStore::PrepareForDisk(const BlockCopy& source, DiskPayload& payload) {
  const absl::StatusOr<std::span<const std::byte>> bytes = MemoryBytes(source, payload.staged);
  if (!bytes.ok()) return bytes.status();
  KVMESH_RETURN_IF_ERROR(VerifyBlock(source.header, *bytes));
  payload.header = source.header;
  payload.bytes = *bytes;
  if (layouts_.Same(source.tier, Tier::kDisk)) return absl::OkStatus();
  payload.converted.resize(layouts_.block_bytes(Tier::kDisk));
  payload.header = layouts_.Convert(source.header, source.tier, *bytes, Tier::kDisk, payload.converted);
  payload.bytes = payload.converted;
  return absl::OkStatus();
}

bool BlockStore::WriteOneToDisk(MutexLock& lock, const BlockKey& key, absl::Time deadline, DiskPayload& payload) {
  if (!WaitToWrite(lock, key, deadline)) return false;
  BlockNode* node = map_.Find(key);
  if (node == nullptr) return false;
  if (!DiskWants(*node)) return node->In(BlockSetKind::kDisk);
  BlockCopy* parent_copy = node->parent->is_root ? nullptr : node->parent->copy(Tier::kDisk);
  if (parent_copy == nullptr && !node->parent->is_root) return false;
  BlockCopy* source = node->copy(Tier::kDevice) != nullptr ? node->copy(Tier::kDevice) : node->copy(Tier::kHost);
  map_.Guard(source);
  if (parent_copy != nullptr) map_.Guard(parent_copy);
  writing_.insert(key);

  absl::StatusOr<DiskSlot> slot = absl::ResourceExhaustedError("");
  for (int evictions = 0; absl::IsResourceExhausted(slot.status()) && evictions <= kDiskEvictions; ++evictions) {
    if (evictions > 0) {
      BlockCopy* victim = map_.Victim(Tier::kDisk);
      if (victim == nullptr) break;
      map_.Evict(victim);
      ++evictions_[static_cast<size_t>(Tier::kDisk)];
    }
    MutexUnlock unlocked(mu_, lock);
    const absl::Status good = evictions > 0 ? absl::OkStatus() : PrepareForDisk(*source, payload);
    slot = good.ok() ? disk_->Write(payload.header, payload.bytes) : absl::StatusOr<DiskSlot>(good);
  }
  bool stored = false;
  if (slot.ok()) {
    stored = source->node != nullptr && map_.Add(payload.header, source->node->index, Tier::kDisk, slot->value()).ok();
    if (stored) {
      CountDemotion(payload.header, Tier::kDisk);
    } else {
      disk_->Erase(*slot);
    }
  } else if (absl::IsDataLoss(slot.status())) {
    Lose(source, MissReason::kCorrupt);
  } else if (!absl::IsResourceExhausted(slot.status())) {
    CountMiss(MissReason::kIoError);
  }
  writing_.erase(key);
  if (parent_copy != nullptr) map_.Unguard(parent_copy);
  map_.Unguard(source);
  changed_.NotifyAll();
  return stored;
}

void BlockStore::FlushToDisk(absl::Time deadline) {
  if (disk_ == nullptr) return;
  MutexLock lock(mu_);
  std::vector<BlockKey> keys;
  map_.ForEachParentsFirst([&](const BlockNode& node) {
    if (DiskWants(node)) keys.push_back(node.key);
  });
  for (const BlockKey& key : keys) {
    if (clock_->Now() >= deadline) return;
    BlockNode* node = map_.Find(key);
    if (node != nullptr && node->In(BlockSetKind::kMemory)) WriteChainToDisk(lock, node, deadline);
  }
}

}  // namespace kvmesh
