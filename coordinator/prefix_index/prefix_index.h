// Which worker holds which prefix: the coordinator's soft state, rebuilt from the workers' reports.
#ifndef KVMESH_COORDINATOR_PREFIX_INDEX_PREFIX_INDEX_H_
#define KVMESH_COORDINATOR_PREFIX_INDEX_PREFIX_INDEX_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvstore/base/bytes.h"
#include "kvstore/base/status.h"
#include "kvstore/base/strong_int.h"
#include "kvstore/block/block_key.h"
#include "kvstore/block/lossy_formats.h"

namespace kvmesh {

// The three prefix-closed sets of a worker, best first. `kMemory` is device or host.
enum class IndexSet : uint8_t { kDevice = 0, kMemory = 1, kDisk = 2 };
inline constexpr size_t kIndexSets = 3;
inline constexpr std::array<IndexSet, kIndexSets> kAllIndexSets = {IndexSet::kDevice, IndexSet::kMemory,
                                                                   IndexSet::kDisk};
constexpr size_t IndexOf(IndexSet set) { return static_cast<size_t>(set); }

// One worker incarnation in the index; reused after RemoveWorker has returned.
using WorkerSlot = StrongInt<struct WorkerSlotTag, uint32_t>;

// Sum of a set's digest, little endian (kvstore/block/set_digest.h).
using DigestSum = FixedBytes<struct DigestSumTag, 16>;

// What a worker says, or what was applied, of one set.
struct SetSummary {
  DigestSum sum;
  uint64_t count = 0;

  friend bool operator==(const SetSummary&, const SetSummary&) = default;
};
using SetSummaries = std::array<SetSummary, kIndexSets>;  // by IndexSet

// A run of blocks of one chain, parents first.
struct StoredRun {
  RootKey root;
  BlockKey parent;  // key before keys[0]; the root for block 0
  uint32_t first_block = 0;
  std::span<const BlockKey> keys;
  LossyFormats lossy_formats;  // of every block in the run
};

struct PrefixQuery {
  RootKey root;
  std::span<const BlockKey> keys;  // a chain from block 0
  LossyFormats accepted;           // a copy counts only when its lossy formats are a subset
};

// Blocks from position zero that a worker holds, by set.
struct PrefixMatch {
  WorkerSlot worker;
  std::array<uint32_t, kIndexSets> blocks{};

  uint32_t in(IndexSet set) const { return blocks[IndexOf(set)]; }
  uint32_t longest() const { return std::max({blocks[0], blocks[1], blocks[2]}); }
};

// Better match first: longest prefix in any set, then longest in device, memory, disk, then lower slot.
bool BetterMatch(const PrefixMatch& a, const PrefixMatch& b);

struct IndexStats {
  uint64_t blocks = 0;           // distinct
  uint64_t copies = 0;           // (worker, set, block)
  uint64_t bytes = 0;            // accounted memory
  uint64_t shed_blocks = 0;      // refused at the byte budget, since start
  uint64_t adopted_digests = 0;  // taken over unverified, since a removal reached coverage that had been shed
};

// Invariants: every set of every worker is prefix-closed; a key has one parent, whoever reports it.
//
// Snapshots: BeginSnapshot opens a hidden generation, ApplyToSnapshot fills it, CommitSnapshot swaps it in whole. While
// it is open the visible generation takes removals only.
//
// Shedding: at its byte budget the index refuses new coverage (counted) and stays prefix-closed. Digests follow the
// stream that was applied, shed or not. A removal below shed coverage cannot be followed: the next digest of that set
// is then adopted instead of compared (counted).
//
// Thread safe; calls that change one worker must not overlap one another. Lookups run in parallel.
class PrefixIndex {
 public:
  virtual ~PrefixIndex() = default;

  // RESOURCE_EXHAUSTED: too many workers.
  virtual absl::StatusOr<WorkerSlot> AddWorker() = 0;
  // The worker's blocks are unfindable once this is called, its storage is freed when it returns. An unknown slot is
  // ignored.
  virtual void RemoveWorker(WorkerSlot worker) = 0;

  // Applied whole or not at all; a block that is there already is no error, and takes the new lossy formats.
  // INVALID_ARGUMENT (protocol error): no keys, more blocks than a prompt can have, a parent that the worker lacks in
  // this set, a parent of another chain or position, or a key known under another parent. FAILED_PRECONDITION: a
  // snapshot is open. NOT_FOUND: no such worker.
  virtual absl::Status Stored(WorkerSlot worker, IndexSet set, const StoredRun& run) = 0;
  // Removes the block and all its descendants from that set, on every branch. A key that is not there is no error.
  // NOT_FOUND: no such worker.
  virtual absl::Status Truncated(WorkerSlot worker, IndexSet set, const BlockKey& key) = 0;
  virtual absl::Status Cleared(WorkerSlot worker, IndexSet set) = 0;

  // Opens an empty hidden generation; drops one that is open. NOT_FOUND: no such worker.
  virtual absl::Status BeginSnapshot(WorkerSlot worker) = 0;
  // As Stored, into the hidden generation. FAILED_PRECONDITION: none is open.
  virtual absl::Status ApplyToSnapshot(WorkerSlot worker, IndexSet set, const StoredRun& run) = 0;
  // Swaps the hidden generation in when it is what the worker says; otherwise it stays open. DATA_LOSS: differs.
  virtual absl::Status CommitSnapshot(WorkerSlot worker, const SetSummaries& expected) = 0;
  // Drops the hidden generation, if one is open.
  virtual void AbortSnapshot(WorkerSlot worker) = 0;

  // OK when the applied stream agrees with the worker's word. DATA_LOSS: differs. NOT_FOUND: no such worker.
  virtual absl::Status CheckDigest(WorkerSlot worker, IndexSet set, const SetSummary& expected) = 0;
  // Of the applied stream. NOT_FOUND: no such worker.
  virtual absl::StatusOr<SetSummary> Digest(WorkerSlot worker, IndexSet set) const = 0;
  // Blocks that lookups can find. 0 for an unknown worker.
  virtual uint64_t Count(WorkerSlot worker, IndexSet set) const = 0;

  // The best `top_k` matches, best first (BetterMatch); workers without a match are left out. `out` is overwritten.
  virtual void Lookup(const PrefixQuery& query, size_t top_k, std::vector<PrefixMatch>& out) const = 0;
  // All matches, in no order.
  virtual void LookupAll(const PrefixQuery& query, std::vector<PrefixMatch>& out) const = 0;

  virtual IndexStats Stats() const = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_COORDINATOR_PREFIX_INDEX_PREFIX_INDEX_H_
