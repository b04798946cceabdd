// Acquire: pins what is on the device and promotes from host and disk, in chain order.
#include <algorithm>
#include <utility>

#include "kvstore/base/mutex_unlock.h"
#include "kvstore/tiers/block_store.h"

namespace kvmesh {
namespace {

// Disk reads in flight for one Acquire.
constexpr size_t kDiskBatch = 16;

MissReason ReasonFor(const absl::Status& status) {
  return absl::IsDataLoss(status) ? MissReason::kCorrupt : MissReason::kIoError;
}

}  // namespace

BlockStore::Acquired BlockStore::Acquire(std::span<const BlockKey> keys, LossyFormats accepted, absl::Time deadline) {
  Acquired out;
  out.pins.reserve(keys.size());
  MutexLock lock(mu_);
  while (out.pins.size() < keys.size()) {
    if (AcquireNext(lock, keys, accepted, deadline, out) == Step::kStop) {
      CountMiss(out.stopped_by);
      break;
    }
  }
  std::vector<BlockNode*> chain;
  chain.reserve(out.pins.size());
  for (const BlockPin& pin : out.pins) {
    if (pin.copy_->node != nullptr) chain.push_back(pin.copy_->node);
  }
  map_.Touch(chain);
  return out;
}

BlockStore::Step BlockStore::AcquireNext(MutexLock& lock, std::span<const BlockKey> keys, LossyFormats accepted,
                                         absl::Time deadline, Acquired& out) {
  const size_t next = out.pins.size();
  const auto stop = [&out](MissReason reason) {
    out.stopped_by = reason;
    return Step::kStop;
  };
  BlockNode* node = map_.Find(keys[next]);
  if (node == nullptr) return stop(MissReason::kAbsent);
  BlockCopy* copy = AcceptedCopy(*node, accepted);
  if (copy == nullptr) return stop(MissReason::kLossy);
  const bool on_device = copy->tier == Tier::kDevice;
  if ((!on_device || copy->pins == 0) && PinBoundReached()) return stop(MissReason::kPinLimit);
  if (on_device) {
    out.pins.push_back(MakePin(copy));
    out.found_in.push_back(Tier::kDevice);
    return Step::kMore;
  }
  if (!MayPromote(*copy)) return stop(MissReason::kLossy);
  if (clock_->Now() >= deadline) return stop(MissReason::kDeadline);
  if (in_transit_.contains(node->key)) {
    return WaitForTransit(lock, keys[next], deadline) ? Step::kMore : stop(MissReason::kDeadline);
  }
  if (copy->tier == Tier::kHost) return PromoteFromHost(lock, copy, deadline, out);
  return PromoteFromDisk(lock, keys.subspan(next), accepted, deadline, out);
}

bool BlockStore::WaitForTransit(MutexLock& lock, const BlockKey& key, absl::Time deadline) {
  while (in_transit_.contains(key)) {
    const absl::Duration left = deadline - clock_->Now();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitFor(lock, left);
  }
  return true;
}

bool BlockStore::MayPromote(const BlockCopy& source) {
  const BlockCopy* held = source.node->copy(Tier::kDevice);
  return held == nullptr || source.header.lossy_formats.SubsetOf(held->header.lossy_formats);
}

BlockStore::Step BlockStore::PromoteFromHost(MutexLock& lock, BlockCopy* source, absl::Time deadline, Acquired& out) {
  const BlockKey key = source->node->key;
  map_.Guard(source);
  in_transit_.insert(key);
  ++private_blocks_;  // until the copy is published, so that the bound counts it
  const std::optional<BlockId> slot = AllocateDevice(lock, deadline);
  absl::StatusOr<BlockHeader> made = source->header;
  if (slot) {
    MutexUnlock unlocked(mu_, lock);
    const std::span<const std::byte> bytes = host_->bytes(BlockId(static_cast<uint32_t>(source->slot)));
    const absl::Status good = VerifyBlock(source->header, bytes);
    made = good.ok() ? WriteToDevice(source->header, Tier::kHost, bytes, *slot) : good;
  }
  in_transit_.erase(key);
  --private_blocks_;
  changed_.NotifyAll();
  if (!slot) {
    map_.Unguard(source);
    out.stopped_by = NoRoom(deadline);
    return Step::kStop;
  }
  return FinishPromotion(source, *slot, made, out);
}

absl::StatusOr<BlockHeader> BlockStore::WriteToDevice(const BlockHeader& header, Tier from,
                                                      std::span<const std::byte> bytes, BlockId slot) {
  if (layouts_.Same(from, Tier::kDevice)) {
    KVMESH_RETURN_IF_ERROR(device_->Write(slot, bytes));
    return header;
  }
  if (device_->memory_kind() == MemoryKind::kHost) {
    return layouts_.Convert(header, from, bytes, Tier::kDevice, device_->bytes(slot));
  }
  std::vector<std::byte> staging(layouts_.block_bytes(Tier::kDevice));
  const BlockHeader made = layouts_.Convert(header, from, bytes, Tier::kDevice, staging);
  KVMESH_RETURN_IF_ERROR(device_->Write(slot, staging));
  return made;
}

BlockStore::Step BlockStore::PromoteFromDisk(MutexLock& lock, std::span<const BlockKey> keys, LossyFormats accepted,
                                             absl::Time deadline, Acquired& out) {
  struct Load {
    BlockCopy* source;
    BlockId slot;
    absl::StatusOr<BlockHeader> made;
  };
  std::vector<Load> loads;
  for (const BlockKey& key : keys.first(std::min(keys.size(), kDiskBatch))) {
    BlockNode* node = map_.Find(key);
    if (node == nullptr || in_transit_.contains(key) || PinBoundReached()) break;
    BlockCopy* source = AcceptedCopy(*node, accepted);
    if (source == nullptr || source->tier != Tier::kDisk || !MayPromote(*source)) break;
    map_.Guard(source);
    in_transit_.insert(key);
    ++private_blocks_;  // as in PromoteFromHost
    const std::optional<BlockId> slot = AllocateDevice(lock, deadline);
    if (!slot) {
      --private_blocks_;
      in_transit_.erase(key);
      changed_.NotifyAll();
      map_.Unguard(source);
      break;
    }
    loads.push_back({source, *slot, source->header});
  }
  if (loads.empty()) {
    out.stopped_by = NoRoom(deadline);
    return Step::kStop;
  }

  const bool in_place = device_->memory_kind() == MemoryKind::kHost && layouts_.Same(Tier::kDisk, Tier::kDevice);
  std::vector<std::vector<std::byte>> staging(in_place ? 0 : loads.size(),
                                              std::vector<std::byte>(layouts_.block_bytes(Tier::kDisk)));
  std::vector<DiskTier::ReadRequest> requests;
  for (size_t i = 0; i < loads.size(); ++i) {
    const std::span<std::byte> target = in_place ? device_->bytes(loads[i].slot) : std::span<std::byte>(staging[i]);
    requests.push_back({DiskSlot(loads[i].source->slot), loads[i].source->header, target, absl::OkStatus()});
  }
  {
    MutexUnlock unlocked(mu_, lock);
    disk_->Read(requests);
    for (size_t i = 0; i < loads.size(); ++i) {
      if (!requests[i].status.ok()) {
        loads[i].made = requests[i].status;
      } else if (!in_place) {
        loads[i].made = WriteToDevice(requests[i].expected, Tier::kDisk, staging[i], loads[i].slot);
      }
    }
  }

  Step step = Step::kMore;
  for (size_t i = 0; i < loads.size(); ++i) {
    in_transit_.erase(FoundUnder(requests[i].expected));
    --private_blocks_;
    if (step == Step::kMore) {
      step = FinishPromotion(loads[i].source, loads[i].slot, loads[i].made, out);
      continue;
    }
    device_->Free(loads[i].slot);
    map_.Unguard(loads[i].source);
  }
  changed_.NotifyAll();
  return step;
}

BlockStore::Step BlockStore::FinishPromotion(BlockCopy* source, BlockId slot, const absl::StatusOr<BlockHeader>& made,
                                             Acquired& out) {
  const auto stop = [&](MissReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    device_->Free(slot);
    map_.Unguard(source);
    out.stopped_by = reason;
    return Step::kStop;
  };
  if (!made.ok()) {
    // INTERNAL is the device's failure, and the source is as good as before.
    if (!absl::IsInternal(made.status())) map_.Lose(source);
    return stop(ReasonFor(made.status()));
  }
  BlockNode* node = source->node;
  if (node == nullptr) return stop(MissReason::kAbsent);  // erased meanwhile
  const absl::Status added = map_.Add(*made, node->index, Tier::kDevice, slot.value()).status();
  if (absl::IsAlreadyExists(added)) {
    device_->Free(slot);  // one as good was sealed or fetched by another meanwhile
  } else if (!added.ok()) {
    // Its parent was erased meanwhile, or the device got it with a history that this reader does not accept.
    return stop(MayPromote(*source) ? MissReason::kAbsent : MissReason::kLossy);
  }
  promoted_bytes_[static_cast<size_t>(source->tier)] += source->header.payload_bytes;
  if (!made->lossy_formats.exact()) ++lossy_promotions_[static_cast<size_t>(source->tier)];
  out.pins.push_back(MakePin(node->copy(Tier::kDevice)));
  out.found_in.push_back(source->tier);
  map_.Unguard(source);
  if (source->tier == Tier::kHost && map_.CanEvict(*source)) map_.Evict(source);
  return Step::kMore;
}

void BlockStore::Lose(BlockCopy* copy, MissReason reason) {
  if (copy->node == nullptr) return;
  CountMiss(reason);
  map_.Lose(copy);
}

}  // namespace kvmesh
