#include "coordinator/registry/usable_boundaries.h"

#include <utility>

namespace kvmesh {

size_t UsableBoundaries::AddTo(Keys& set, std::span<const BlockKey> keys) const {
  size_t refused = 0;
  for (const BlockKey& key : keys) {
    if (set.size() < max_boundaries_) {
      set.insert(key);
    } else if (!set.contains(key)) {
      ++refused;
    }
  }
  return refused;
}

size_t UsableBoundaries::Add(std::span<const BlockKey> keys) {
  WriterLock lock(mu_);
  return AddTo(visible_, keys);
}

void UsableBoundaries::Remove(std::span<const BlockKey> keys) {
  WriterLock lock(mu_);
  for (const BlockKey& key : keys) visible_.erase(key);
}

void UsableBoundaries::Clear() {
  WriterLock lock(mu_);
  visible_ = {};
}

void UsableBoundaries::ResetSnapshot() {
  WriterLock lock(mu_);
  hidden_ = {};
}

size_t UsableBoundaries::AddToSnapshot(std::span<const BlockKey> keys) {
  WriterLock lock(mu_);
  return AddTo(hidden_, keys);
}

void UsableBoundaries::CommitSnapshot() {
  WriterLock lock(mu_);
  visible_ = std::exchange(hidden_, {});
}

uint32_t UsableBoundaries::Longest(std::span<const BlockKey> keys) const {
  ReaderLock lock(mu_);
  for (size_t blocks = visible_.empty() ? 0 : keys.size(); blocks > 0; --blocks) {
    if (visible_.contains(keys[blocks - 1])) return static_cast<uint32_t>(blocks);
  }
  return 0;
}

size_t UsableBoundaries::size() const {
  ReaderLock lock(mu_);
  return visible_.size();
}

}  // namespace kvmesh
