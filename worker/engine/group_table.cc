#include "worker/engine/group_table.h"

#include <algorithm>

#include "kernels/paged_attention.h"
#include "kvstore/block/key_chain.h"

namespace kvmesh {

GroupTable::GroupTable(CacheGroup group)
    : group_(std::move(group)), block_tokens_(static_cast<uint32_t>(group_.store->device().layout().block_tokens)) {}

std::vector<uint32_t> GroupTable::ids() const {
  std::vector<uint32_t> ids;
  ids.reserve(entries_.size());
  for (size_t i = 0; i < entries_.size(); ++i) ids.push_back(held(i) ? entries_[i].block().value() : kNoBlock);
  return ids;
}

void GroupTable::Adopt(std::vector<HeldBlock> held, size_t boundary) {
  entries_.resize(boundary);
  for (HeldBlock& block : held) entries_[block.index].sealed = std::move(block.pin);
}

absl::Status GroupTable::Grow(size_t blocks, absl::Time deadline) {
  while (entries_.size() < blocks) {
    absl::StatusOr<PrivateBlock> block = group_.store->Allocate(deadline);
    if (!block.ok()) return block.status();
    entries_.push_back({{}, *std::move(block)});
  }
  return absl::OkStatus();
}

absl::Status GroupTable::Seal(const BlockStore::SealInfo& info) {
  BlockStore::SealInfo own = info;
  own.group = group_.number;
  Entry& entry = entries_[info.index];
  absl::StatusOr<BlockPin> pin = group_.store->Seal(std::move(entry.own), own);
  if (!pin.ok()) return pin.status();
  entry.sealed = *std::move(pin);
  return absl::OkStatus();
}

void GroupTable::DropUnseen(uint64_t position) {
  if (group_.window == 0) return;
  const NeededBlocks needed = BlocksSeenFrom(group_, position, position, block_tokens_);
  // What was dropped before ends where the kept ones begin.
  const uint64_t full = std::min<uint64_t>(needed.first, position / block_tokens_);
  for (uint64_t i = full; i > needed.sinks && held(i - 1); --i) entries_[i - 1] = {};
}

absl::StatusOr<PrivateBlock> GroupTable::CopyOf(BlockId block, absl::Time deadline) const {
  absl::StatusOr<PrivateBlock> copy = group_.store->Allocate(deadline);
  if (!copy.ok()) return copy;
  BlockPool& pool = group_.store->device();
  std::vector<std::byte> bytes(static_cast<size_t>(pool.layout().block_bytes));
  KVMESH_RETURN_IF_ERROR(pool.Read(block, bytes));
  KVMESH_RETURN_IF_ERROR(pool.Write(copy->block(), bytes));
  return copy;
}

absl::Status GroupTable::MakeOwn(size_t i, absl::Time deadline) {
  if (entries_[i].own) return absl::OkStatus();
  absl::StatusOr<PrivateBlock> own = held(i) ? CopyOf(entries_[i].block(), deadline) : group_.store->Allocate(deadline);
  if (!own.ok()) return own.status();
  entries_[i] = {{}, *std::move(own)};
  return absl::OkStatus();
}

bool GroupTable::Regain(size_t i, const BlockKey& chain_key, LossyFormats accepted, absl::Time deadline) {
  const BlockKey key = ComputeGroupKey(chain_key, group_.number);
  BlockStore::Acquired acquired = group_.store->Acquire({&key, 1}, accepted, deadline);
  if (acquired.pins.empty()) return false;
  entries_[i].sealed = std::move(acquired.pins[0]);
  return true;
}

absl::StatusOr<GroupTable> GroupTable::Fork(absl::Time deadline) const {
  GroupTable fork(group_);
  for (size_t i = 0; i < entries_.size(); ++i) {
    fork.entries_.emplace_back();
    if (sealed(i)) fork.entries_.back().sealed = group_.store->Share(entries_[i].sealed);
    if (!entries_[i].own) continue;
    absl::StatusOr<PrivateBlock> copy = CopyOf(entries_[i].block(), deadline);
    if (!copy.ok()) return copy.status();
    fork.entries_.back().own = *std::move(copy);
  }
  return fork;
}

}  // namespace kvmesh
