#include "kvstore/tiers/window_boundaries.h"

#include <algorithm>

#include "kvstore/base/check.h"

namespace kvmesh {

void WindowBoundaries::ReportTo(EventLog& log) {
  MutexLock lock(mu_);
  log_ = &log;
}

void WindowBoundaries::Append(const BlockKey& key, bool usable) {
  if (log_ == nullptr) return;
  log_->Append({.kind = usable ? StoreEvent::Kind::kUsable : StoreEvent::Kind::kUnusable, .key = key});
}

uint32_t WindowBoundaries::RunAfter(const BlockKey& parent) const {
  const auto before = blocks_.find(parent);
  return before == blocks_.end() ? 1 : std::min(needed_, before->second.run + 1);
}

void WindowBoundaries::OnHeld(const BlockKey& key, const BlockKey& parent, uint32_t index) {
  MutexLock lock(mu_);
  const Block block{.parent = parent, .index = index, .run = RunAfter(parent)};
  KVMESH_CHECK(blocks_.emplace(key, block).second, "a window's block is held twice");
  if (index > 0) children_[parent].push_back(key);
  if (Usable(block)) Append(key, true);
  UpdateAfter(key);
}

void WindowBoundaries::OnGone(const BlockKey& key) {
  MutexLock lock(mu_);
  const auto held = blocks_.find(key);
  KVMESH_CHECK(held != blocks_.end(), "a window's block goes that is not held");
  const Block block = held->second;
  blocks_.erase(held);
  if (block.index > 0) {
    const auto siblings = children_.find(block.parent);
    siblings->second.erase(std::find(siblings->second.begin(), siblings->second.end(), key));
    if (siblings->second.empty()) children_.erase(siblings);
  }
  if (Usable(block)) Append(key, false);
  UpdateAfter(key);
}

void WindowBoundaries::UpdateAfter(const BlockKey& key) {
  std::vector<BlockKey> changed = {key};
  while (!changed.empty()) {
    const BlockKey parent = changed.back();
    changed.pop_back();
    const auto children = children_.find(parent);
    if (children == children_.end()) continue;
    for (const BlockKey& child : children->second) {
      Block& block = blocks_.find(child)->second;
      const uint32_t run = RunAfter(parent);
      if (run == block.run) continue;
      const bool was_usable = Usable(block);
      block.run = run;
      if (Usable(block) != was_usable) Append(child, !was_usable);
      changed.push_back(child);
    }
  }
}

std::vector<BlockKey> WindowBoundaries::All() const {
  MutexLock lock(mu_);
  std::vector<BlockKey> usable;
  for (const auto& [key, block] : blocks_) {
    if (Usable(block)) usable.push_back(key);
  }
  return usable;
}

}  // namespace kvmesh
