#include "coordinator/prefix_index/literal_prefix_index.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kvstore/block/set_digest.h"

namespace kvmesh {
namespace {

using Member = unsigned __int128;

// Nodes looked at in one step of a sweep: bounds how long a writer keeps lookups waiting.
constexpr uint32_t kSweepNodes = 4096;

absl::Status UnknownWorker(WorkerSlot worker) {
  return absl::NotFoundError(absl::StrCat("prefix index: no worker in slot ", worker.value()));
}

absl::Status Compare(absl::string_view what, IndexSet set, const SetSummary& applied, const SetSummary& expected) {
  if (applied == expected) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(what, ": set ", IndexOf(set) + 1, " has ", applied.count, " blocks and sum ",
                                          applied.sum.ToHex(), ", the worker says ", expected.count, " and ",
                                          expected.sum.ToHex()));
}

}  // namespace

SetSummary LiteralPrefixIndex::Applied::Summary() const {
  SetSummary summary{.count = count};
  std::memcpy(summary.sum.bytes.data(), &sum, sizeof(sum));
  return summary;
}

absl::Status PrefixIndexOptions::Validate() const {
  if (max_bytes == 0) return absl::InvalidArgumentError("index max_bytes: must be positive");
  if (max_workers == 0) return absl::InvalidArgumentError("index max_workers: must be positive");
  return absl::OkStatus();
}

LiteralPrefixIndex::LiteralPrefixIndex(const PrefixIndexOptions& options) : options_(options) {}

LiteralPrefixIndex::Worker* LiteralPrefixIndex::Find(WorkerSlot worker) {
  if (worker.value() >= workers_.size() || !workers_[worker.value()].used) return nullptr;
  return &workers_[worker.value()];
}

const LiteralPrefixIndex::Worker* LiteralPrefixIndex::Find(WorkerSlot worker) const {
  if (worker.value() >= workers_.size() || !workers_[worker.value()].used) return nullptr;
  return &workers_[worker.value()];
}

LaneId LiteralPrefixIndex::NewLane(WorkerSlot worker, IndexSet set, bool visible) {
  if (free_lanes_.empty()) {
    free_lanes_.push_back(LaneId(static_cast<uint32_t>(lanes_.size())));
    lanes_.emplace_back();
  }
  const LaneId id = free_lanes_.back();
  free_lanes_.pop_back();
  Lane& lane = lanes_[id.value()];
  lane = Lane();
  lane.worker = worker;
  lane.set = set;
  lane.visible = visible;
  return id;
}

LiteralPrefixIndex::LaneSet LiteralPrefixIndex::NewLanes(WorkerSlot worker, bool visible) {
  LaneSet lanes;
  for (const IndexSet set : kAllIndexSets) lanes[IndexOf(set)] = NewLane(worker, set, visible);
  return lanes;
}

void LiteralPrefixIndex::Hide(std::span<const LaneId> lanes) {
  for (const LaneId lane : lanes) lanes_[lane.value()].visible = false;
}

void LiteralPrefixIndex::Sweep(std::span<const LaneId> lanes) {
  uint32_t next = 0;
  do {
    WriterLock lock(mu_);
    next = tree_.SweepFrom(next, kSweepNodes, lanes);
  } while (next != 0);
  WriterLock lock(mu_);
  free_lanes_.insert(free_lanes_.end(), lanes.begin(), lanes.end());
}

absl::StatusOr<WorkerSlot> LiteralPrefixIndex::AddWorker() {
  WriterLock lock(mu_);
  if (free_workers_.empty()) {
    if (workers_.size() >= options_.max_workers) {
      return absl::ResourceExhaustedError(absl::StrCat("prefix index: max_workers ", options_.max_workers));
    }
    free_workers_.push_back(WorkerSlot(static_cast<uint32_t>(workers_.size())));
    workers_.emplace_back();
  }
  const WorkerSlot slot = free_workers_.back();
  free_workers_.pop_back();
  Worker& worker = workers_[slot.value()];
  worker.used = true;
  worker.snapshot_open = false;
  worker.visible = NewLanes(slot, /*visible=*/true);
  return slot;
}

void LiteralPrefixIndex::RemoveWorker(WorkerSlot slot) {
  std::vector<LaneId> retired;
  {
    WriterLock lock(mu_);
    Worker* worker = Find(slot);
    if (worker == nullptr) return;
    retired.assign(worker->visible.begin(), worker->visible.end());
    if (worker->snapshot_open) retired.insert(retired.end(), worker->hidden.begin(), worker->hidden.end());
    Hide(retired);
    worker->used = false;
  }
  Sweep(retired);
  WriterLock lock(mu_);
  free_workers_.push_back(slot);
}

absl::Status LiteralPrefixIndex::Truncated(WorkerSlot slot, IndexSet set, const BlockKey& key) {
  struct Removed {
    BlockKey parent;
    BlockKey key;
    LossyFormats lossy_formats;
  };
  std::vector<Removed> removed;
  {
    WriterLock lock(mu_);
    const Worker* worker = Find(slot);
    if (worker == nullptr) return UnknownWorker(slot);
    const LaneId lane_id = worker->visible[IndexOf(set)];
    Lane& lane = lanes_[lane_id.value()];
    const NodeId top = tree_.Find(key);
    if (top == kNoNode || tree_.FindCopy(top, lane_id) == nullptr) {
      lane.unverified |= lane.shed > 0;
      return absl::OkStatus();
    }
    std::vector<NodeId> subtree;
    tree_.Subtree(top, lane_id, subtree);
    removed.reserve(subtree.size());
    for (auto id = subtree.rbegin(); id != subtree.rend(); ++id) {
      const BlockTree::Node& node = tree_.node(*id);
      const BlockTree::Copy& copy = *tree_.FindCopy(*id, lane_id);
      removed.push_back({tree_.node(node.parent).key, node.key, copy.own});
      lane.unverified |= copy.shed_below;
      tree_.EraseCopy(*id, lane_id);
      tree_.FreeIfUnused(*id);
    }
    lane.blocks -= subtree.size();
  }
  // Hashing outside of the lock: a big truncation must not stall lookups.
  Member sum = 0;
  for (const Removed& block : removed) sum += SetMember(block.parent, block.key, block.lossy_formats);
  WriterLock lock(mu_);
  const Worker* worker = Find(slot);
  if (worker == nullptr) return UnknownWorker(slot);
  Applied& applied = lanes_[worker->visible[IndexOf(set)].value()].applied;
  applied.sum -= sum;
  applied.count -= removed.size();
  return absl::OkStatus();
}

absl::Status LiteralPrefixIndex::Cleared(WorkerSlot slot, IndexSet set) {
  LaneId retired;
  {
    WriterLock lock(mu_);
    Worker* worker = Find(slot);
    if (worker == nullptr) return UnknownWorker(slot);
    retired = worker->visible[IndexOf(set)];
    Hide({&retired, 1});
    worker->visible[IndexOf(set)] = NewLane(slot, set, /*visible=*/true);
  }
  Sweep({&retired, 1});
  return absl::OkStatus();
}

absl::Status LiteralPrefixIndex::BeginSnapshot(WorkerSlot slot) {
  AbortSnapshot(slot);
  WriterLock lock(mu_);
  Worker* worker = Find(slot);
  if (worker == nullptr) return UnknownWorker(slot);
  worker->snapshot_open = true;
  worker->hidden = NewLanes(slot, /*visible=*/false);
  return absl::OkStatus();
}

absl::Status LiteralPrefixIndex::CommitSnapshot(WorkerSlot slot, const SetSummaries& expected) {
  LaneSet retired;
  {
    WriterLock lock(mu_);
    Worker* worker = Find(slot);
    if (worker == nullptr) return UnknownWorker(slot);
    if (!worker->snapshot_open) return absl::FailedPreconditionError("snapshot: none is open");
    for (const IndexSet set : kAllIndexSets) {
      const SetSummary applied = lanes_[worker->hidden[IndexOf(set)].value()].applied.Summary();
      KVMESH_RETURN_IF_ERROR(Compare("snapshot", set, applied, expected[IndexOf(set)]));
    }
    retired = worker->visible;
    Hide(retired);
    worker->visible = worker->hidden;
    worker->snapshot_open = false;
    for (const LaneId lane : worker->visible) lanes_[lane.value()].visible = true;
  }
  Sweep(retired);
  return absl::OkStatus();
}

void LiteralPrefixIndex::AbortSnapshot(WorkerSlot slot) {
  LaneSet retired;
  {
    WriterLock lock(mu_);
    Worker* worker = Find(slot);
    if (worker == nullptr || !worker->snapshot_open) return;
    retired = worker->hidden;
    worker->snapshot_open = false;
  }
  Sweep(retired);
}

absl::Status LiteralPrefixIndex::CheckDigest(WorkerSlot slot, IndexSet set, const SetSummary& expected) {
  WriterLock lock(mu_);
  const Worker* worker = Find(slot);
  if (worker == nullptr) return UnknownWorker(slot);
  Lane& lane = lanes_[worker->visible[IndexOf(set)].value()];
  const SetSummary applied = lane.applied.Summary();
  if (lane.unverified) {
    std::memcpy(&lane.applied.sum, expected.sum.bytes.data(), sizeof(lane.applied.sum));
    lane.applied.count = expected.count;
    lane.unverified = false;
    ++adopted_digests_;
    return absl::OkStatus();
  }
  return Compare("digest", set, applied, expected);
}

absl::StatusOr<SetSummary> LiteralPrefixIndex::Digest(WorkerSlot slot, IndexSet set) const {
  ReaderLock lock(mu_);
  const Worker* worker = Find(slot);
  if (worker == nullptr) return UnknownWorker(slot);
  return lanes_[worker->visible[IndexOf(set)].value()].applied.Summary();
}

uint64_t LiteralPrefixIndex::Count(WorkerSlot slot, IndexSet set) const {
  ReaderLock lock(mu_);
  const Worker* worker = Find(slot);
  return worker == nullptr ? 0 : lanes_[worker->visible[IndexOf(set)].value()].blocks;
}

IndexStats LiteralPrefixIndex::Stats() const {
  ReaderLock lock(mu_);
  return {.blocks = tree_.blocks(),
          .copies = tree_.copies(),
          .bytes = tree_.bytes(),
          .shed_blocks = shed_blocks_,
          .adopted_digests = adopted_digests_};
}

}  // namespace kvmesh
