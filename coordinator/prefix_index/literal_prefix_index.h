// PrefixIndex as one tree of blocks under one reader-writer lock.
#ifndef KVMESH_COORDINATOR_PREFIX_INDEX_LITERAL_PREFIX_INDEX_H_
#define KVMESH_COORDINATOR_PREFIX_INDEX_LITERAL_PREFIX_INDEX_H_

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "coordinator/prefix_index/block_tree.h"
#include "coordinator/prefix_index/prefix_index.h"
#include "kvstore/base/mutex.h"

namespace kvmesh {

struct PrefixIndexOptions {
  uint64_t max_bytes = uint64_t{4} << 30;  // new coverage is shed above this
  uint32_t max_workers = 4096;             // live at once

  // INVALID_ARGUMENT naming the field.
  absl::Status Validate() const;
};

// A lane is one generation of one set of one worker: a worker has three visible lanes and, during a snapshot, three
// hidden ones. Clearing a set, committing a snapshot and removing a worker all retire lanes: a retired lane is
// invisible at once, its copies are swept in short steps, and only then is its number used again.
//
// A lookup costs O(log chain) tree probes for each distinct depth among the holders of its first block.
class LiteralPrefixIndex final : public PrefixIndex {
 public:
  // REQUIRES: options.Validate().ok().
  explicit LiteralPrefixIndex(const PrefixIndexOptions& options);

  absl::StatusOr<WorkerSlot> AddWorker() override;
  void RemoveWorker(WorkerSlot worker) override;
  absl::Status Stored(WorkerSlot worker, IndexSet set, const StoredRun& run) override;
  absl::Status Truncated(WorkerSlot worker, IndexSet set, const BlockKey& key) override;
  absl::Status Cleared(WorkerSlot worker, IndexSet set) override;
  absl::Status BeginSnapshot(WorkerSlot worker) override;
  absl::Status ApplyToSnapshot(WorkerSlot worker, IndexSet set, const StoredRun& run) override;
  absl::Status CommitSnapshot(WorkerSlot worker, const SetSummaries& expected) override;
  void AbortSnapshot(WorkerSlot worker) override;
  absl::Status CheckDigest(WorkerSlot worker, IndexSet set, const SetSummary& expected) override;
  absl::StatusOr<SetSummary> Digest(WorkerSlot worker, IndexSet set) const override;
  uint64_t Count(WorkerSlot worker, IndexSet set) const override;
  void Lookup(const PrefixQuery& query, size_t top_k, std::vector<PrefixMatch>& out) const override;
  void LookupAll(const PrefixQuery& query, std::vector<PrefixMatch>& out) const override;
  IndexStats Stats() const override;

 private:
  using LaneSet = std::array<LaneId, kIndexSets>;

  // As SetDigest (kvstore/block/set_digest.h), but a worker's word can be adopted.
  struct Applied {
    unsigned __int128 sum = 0;
    uint64_t count = 0;

    void Add(unsigned __int128 member) { sum += member, ++count; }
    void Remove(unsigned __int128 member) { sum -= member, --count; }
    SetSummary Summary() const;
  };
  struct Lane {
    WorkerSlot worker;
    IndexSet set = IndexSet::kDevice;
    bool visible = false;
    uint64_t blocks = 0;      // held in the tree
    uint64_t shed = 0;        // refused since the lane began
    Applied applied;          // the stream, shed blocks included
    bool unverified = false;  // `applied` lost track below shed coverage
  };
  struct Worker {
    bool used = false;
    bool snapshot_open = false;
    LaneSet visible{};
    LaneSet hidden{};
  };

  Worker* Find(WorkerSlot worker) ABSL_SHARED_LOCKS_REQUIRED(mu_);
  const Worker* Find(WorkerSlot worker) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  LaneId NewLane(WorkerSlot worker, IndexSet set, bool visible) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  LaneSet NewLanes(WorkerSlot worker, bool visible) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Hide(std::span<const LaneId> lanes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Frees the copies of hidden lanes in steps, then the lanes. Takes and releases mu_.
  void Sweep(std::span<const LaneId> lanes) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status Store(WorkerSlot worker, IndexSet set, const StoredRun& run, bool hidden) ABSL_LOCKS_EXCLUDED(mu_);
  // The node to put a run under, or a protocol error. kNoNode: the parent itself was shed.
  absl::StatusOr<NodeId> ResolveParent(LaneId lane, const StoredRun& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Nodes of the run's keys under `parent`, known or made, as many as the budget allows; or a protocol error, and then
  // nothing was made.
  absl::Status ResolveNodes(LaneId lane, const StoredRun& run, NodeId parent, std::vector<NodeId>& nodes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddCopies(LaneId lane_id, const StoredRun& run, NodeId parent, std::span<const NodeId> nodes,
                 std::span<const unsigned __int128> members) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The lossy formats of the copy of `top` changed: those of the paths through it follow.
  void RefreshPaths(NodeId top, LaneId lane, LossyFormats above) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts blocks that found no room under `parent`.
  void Shed(LaneId lane_id, NodeId parent, std::span<const unsigned __int128> members)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const PrefixIndexOptions options_;

  mutable SharedMutex mu_;
  BlockTree tree_ ABSL_GUARDED_BY(mu_);
  std::vector<Lane> lanes_ ABSL_GUARDED_BY(mu_);
  std::vector<LaneId> free_lanes_ ABSL_GUARDED_BY(mu_);
  std::vector<Worker> workers_ ABSL_GUARDED_BY(mu_);
  std::vector<WorkerSlot> free_workers_ ABSL_GUARDED_BY(mu_);
  uint64_t shed_blocks_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t adopted_digests_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_PREFIX_INDEX_LITERAL_PREFIX_INDEX_H_
