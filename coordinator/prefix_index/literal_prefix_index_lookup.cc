// LiteralPrefixIndex: lookups.
#include <algorithm>

#include "coordinator/prefix_index/literal_prefix_index.h"

namespace kvmesh {
namespace {

// Lanes [begin, end) of the scratch whose match lies in [low, high] blocks.
struct Range {
  uint32_t low;
  uint32_t high;
  uint32_t begin;
  uint32_t end;
};

// Reused by the lookups of one thread, so that none allocates.
struct Scratch {
  std::vector<LaneId> lanes;
  std::vector<LaneId> without;
  std::vector<Range> ranges;
  std::vector<uint32_t> position;  // by worker slot: 1 + index in the result, 0 outside of a lookup
};

Scratch& ThreadScratch() {
  thread_local Scratch scratch;
  return scratch;
}

// Moves the lanes that have an acceptable copy to the front of [begin, end), both parts in order. Returns the border.
uint32_t Partition(const BlockTree::Node* node, LossyFormats accepted, uint32_t begin, uint32_t end, Scratch& scratch) {
  if (node == nullptr) return begin;
  scratch.without.clear();
  uint32_t border = begin;
  auto copy = node->copies.begin();
  for (uint32_t i = begin; i < end; ++i) {
    const LaneId lane = scratch.lanes[i];
    while (copy != node->copies.end() && copy->lane < lane) ++copy;
    if (copy != node->copies.end() && copy->lane == lane && copy->path.SubsetOf(accepted)) {
      scratch.lanes[border++] = lane;
    } else {
      scratch.without.push_back(lane);
    }
  }
  std::copy(scratch.without.begin(), scratch.without.end(), scratch.lanes.begin() + border);
  return border;
}

}  // namespace

bool BetterMatch(const PrefixMatch& a, const PrefixMatch& b) {
  if (a.longest() != b.longest()) return a.longest() > b.longest();
  if (a.blocks != b.blocks) return a.blocks > b.blocks;
  return a.worker < b.worker;
}

void LiteralPrefixIndex::Lookup(const PrefixQuery& query, size_t top_k, std::vector<PrefixMatch>& out) const {
  LookupAll(query, out);
  const size_t kept = std::min(top_k, out.size());
  std::partial_sort(out.begin(), out.begin() + kept, out.end(), BetterMatch);
  out.resize(kept);
}

void LiteralPrefixIndex::LookupAll(const PrefixQuery& query, std::vector<PrefixMatch>& out) const {
  out.clear();
  if (query.keys.empty()) return;
  Scratch& scratch = ThreadScratch();
  scratch.lanes.clear();
  scratch.ranges.clear();

  ReaderLock lock(mu_);
  const NodeId first = tree_.Find(query.keys[0]);
  if (first == kNoNode) return;
  const BlockTree::Node& head = tree_.node(first);
  if (head.depth != 1 || tree_.node(head.root).key != RootAsParent(query.root)) return;
  for (const BlockTree::Copy& copy : head.copies) {
    if (lanes_[copy.lane.value()].visible && copy.path.SubsetOf(query.accepted)) scratch.lanes.push_back(copy.lane);
  }
  if (scratch.lanes.empty()) return;
  if (scratch.position.size() < workers_.size()) scratch.position.resize(workers_.size(), 0);

  // All lanes at once: sets are prefix-closed, so halving the range is exact, and lanes with near depths share probes.
  scratch.ranges.push_back(
      {1, static_cast<uint32_t>(query.keys.size()), 0, static_cast<uint32_t>(scratch.lanes.size())});
  while (!scratch.ranges.empty()) {
    const Range range = scratch.ranges.back();
    scratch.ranges.pop_back();
    if (range.begin == range.end) continue;
    if (range.low == range.high) {
      for (uint32_t i = range.begin; i < range.end; ++i) {
        const Lane& lane = lanes_[scratch.lanes[i].value()];
        uint32_t& position = scratch.position[lane.worker.value()];
        if (position == 0) {
          out.push_back({.worker = lane.worker});
          position = static_cast<uint32_t>(out.size());
        }
        out[position - 1].blocks[IndexOf(lane.set)] = range.low;
      }
      continue;
    }
    const uint32_t middle = range.low + (range.high - range.low + 1) / 2;
    const NodeId id = tree_.Find(query.keys[middle - 1]);
    const BlockTree::Node* node = id == kNoNode ? nullptr : &tree_.node(id);
    if (node != nullptr && (node->depth != middle || node->root != head.root)) node = nullptr;
    const uint32_t border = Partition(node, query.accepted, range.begin, range.end, scratch);
    scratch.ranges.push_back({range.low, middle - 1, border, range.end});
    scratch.ranges.push_back({middle, range.high, range.begin, border});
  }
  for (const PrefixMatch& match : out) scratch.position[match.worker.value()] = 0;
}

}  // namespace kvmesh
