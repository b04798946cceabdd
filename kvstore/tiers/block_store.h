// One worker's sealed blocks over device, host and disk: finds prefixes, promotes and pins them, publishes new blocks,
// and makes room.
//
// Life of a block: Allocate gives a private device slot; the owner fills it; Seal (own content) or Publish (a copy from
// elsewhere, verified here) makes it findable and returns a pin. Unpinned, it is demoted device -> host -> disk, leaves
// first, and promoted back by Acquire in chain order. A move frees the slot it came from, except that disk copies stay.
// Host and disk may hold blocks in formats of their own: a move converts what it copied, after verifying it, and seals
// it anew. So copies of one block differ in their lossy formats (contract 8); a copy is a hit by its own, and one with
// fewer takes the place of one with more.
//
// Ordering: bytes complete, checksum, map insert, event (contract 2). Thread safe; bytes move outside the lock, under
// guards. Deadlines are wall-clock times of the injected Clock.
#ifndef KVMESH_KVSTORE_TIERS_BLOCK_STORE_H_
#define KVMESH_KVSTORE_TIERS_BLOCK_STORE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"
#include "kvstore/pool/block_pool.h"
#include "kvstore/pool/prefix_map.h"
#include "kvstore/tiers/disk_tier.h"
#include "kvstore/tiers/event_log.h"
#include "kvstore/tiers/store_books.h"
#include "kvstore/tiers/tier_layouts.h"
#include "kvstore/tiers/window_boundaries.h"

namespace kvmesh {

class BlockStore;

// Forbids eviction of one copy while it lives. Move-only; outlived by its store.
class BlockPin {
 public:
  BlockPin() = default;
  BlockPin(BlockPin&& other) noexcept { *this = std::move(other); }
  BlockPin& operator=(BlockPin&& other) noexcept;
  ~BlockPin() { Reset(); }
  void Reset();

  explicit operator bool() const { return copy_ != nullptr; }
  Tier tier() const { return copy_->tier; }
  // REQUIRES: tier() == kDevice.
  BlockId block() const { return BlockId(static_cast<uint32_t>(copy_->slot)); }
  const BlockHeader& header() const { return copy_->header; }

 private:
  friend class BlockStore;
  BlockPin(BlockStore* store, BlockCopy* copy) : store_(store), copy_(copy) {}
  BlockStore* store_ = nullptr;
  BlockCopy* copy_ = nullptr;
};

// A device slot that nobody else can find. Freed when dropped; consumed by Seal and Publish. Move-only.
class PrivateBlock {
 public:
  PrivateBlock() = default;
  PrivateBlock(PrivateBlock&& other) noexcept { *this = std::move(other); }
  PrivateBlock& operator=(PrivateBlock&& other) noexcept;
  ~PrivateBlock() { Reset(); }
  void Reset();

  explicit operator bool() const { return store_ != nullptr; }
  BlockId block() const { return block_; }

 private:
  friend class BlockStore;
  PrivateBlock(BlockStore* store, BlockId block) : store_(store), block_(block) {}
  BlockStore* store_ = nullptr;
  BlockId block_;
};

class BlockStore {
 public:
  struct Options {
    BlockPool* device = nullptr;             // required
    BlockPool* host = nullptr;               // optional; memory_kind() == kHost; the device's dimensions in any format
    DiskTier* disk = nullptr;                // optional
    std::optional<BlockLayout> disk_layout;  // of the same dimensions; none: the device's
    const Clock* clock = &Clock::Real();
    EvictionPolicyFactory policy;      // required
    double max_pinned_fraction = 0.5;  // of each tier; on the device pinned and private blocks together
    size_t event_capacity = 1 << 20;
    uint32_t block_tokens = 0;  // required; gives a header's start position its index
    uint32_t max_group = 0;     // layer group of its blocks, at most
    // Told of the exact blocks of groups above 0, and asked for the boundaries of a cut; outlives the store. Optional.
    WindowBoundaries* boundaries = nullptr;
  };

  // Takes over what the disk recovered, as AdoptRecovered does. INVALID_ARGUMENT names the option.
  static absl::StatusOr<std::unique_ptr<BlockStore>> Create(const Options& options);
  // REQUIRES: no pin and no private block outstanding.
  ~BlockStore();

  // Takes over what a disk that opened late has recovered. Blocks whose parent did not survive are dropped.
  void AdoptRecovered();

  struct Match {
    std::array<uint32_t, 3> blocks{};  // leading keys held, by set
  };
  // A probe: renews nothing, pins nothing.
  Match Lookup(std::span<const BlockKey> keys, LossyFormats accepted) const;

  struct Acquired {
    std::vector<BlockPin> pins;                   // device copies of the leading keys
    std::vector<Tier> found_in;                   // where each was
    MissReason stopped_by = MissReason::kAbsent;  // meaningful when pins.size() < keys.size()
  };
  // Pins the longest run of leading keys on the device, promoting in chain order from host and disk until `deadline`,
  // which bounds the wait for room too. Marks them used. Copies found wrong are erased and counted.
  Acquired Acquire(std::span<const BlockKey> keys, LossyFormats accepted, absl::Time deadline);

  // RESOURCE_EXHAUSTED: every slot is pinned, or the bound of pinned blocks is reached. DEADLINE_EXCEEDED: no slot was
  // free, and `deadline` came before there was room.
  absl::StatusOr<PrivateBlock> Allocate(absl::Time deadline = absl::InfiniteFuture());

  // Where new content stands.
  struct SealInfo {
    RootKey root;
    BlockKey key;  // these as in BlockHeader
    BlockKey parent;
    uint32_t index = 0;
    LossyFormats lossy_formats;
    uint32_t group = 0;
  };
  // Checksums and publishes content that this worker computed. If the key is held on the device already, the private
  // block is dropped and the held copy is pinned instead; but a held copy with more lossy formats is replaced for new
  // readers. FAILED_PRECONDITION: the parent is not on the device, or the device holds the key with other lossy
  // formats, neither more nor fewer. INVALID_ARGUMENT: the key is known under another parent. On error `block` stays
  // the caller's. REQUIRES: `block` is one of this store's.
  absl::StatusOr<BlockPin> Seal(PrivateBlock&& block, const SealInfo& info);
  // The same for a copy from elsewhere. DATA_LOSS, counted: the bytes are not what the header sealed, or the header is
  // of another layout, format, group or shard than this store's blocks.
  absl::StatusOr<BlockPin> Publish(PrivateBlock&& block, const BlockHeader& header);
  // A second pin of the same copy.
  BlockPin Share(const BlockPin& pin);

  // Keys in the chain of the `count` blocks of a group up to and including the one at `last_key`, of which the first
  // has index `first`. NOT_FOUND: not all of them are held, or they are of another identity.
  absl::StatusOr<std::vector<BlockKey>> ChainKeys(const RootKey& root, const BlockKey& last_key, uint32_t first,
                                                  uint32_t count, uint32_t group = 0) const;
  // Pins copies of such a span in the fastest tier that holds them as accepted, for readers that take bytes away.
  // NOT_FOUND: as ChainKeys, or part of it is held in no format accepted. RESOURCE_EXHAUSTED: the bound of a tier's
  // pinned blocks is reached.
  absl::StatusOr<std::vector<BlockPin>> PinForRead(const RootKey& root, const BlockKey& last_key, uint32_t first,
                                                   uint32_t count, LossyFormats accepted, uint32_t group = 0);
  // Copies a pinned block's bytes, verified, in the device's layout, and returns the header that seals them there.
  // DATA_LOSS: erased and counted. UNAVAILABLE: I/O error. REQUIRES: `out` is of the device's block size.
  absl::StatusOr<BlockHeader> Read(const BlockPin& pin, std::span<std::byte> out);
  // The pinned block's bytes in place; empty when they are not in host-addressable memory, or in another layout than
  // the device's. Not verified.
  std::span<const std::byte> BytesInPlace(const BlockPin& pin) const;

  // Makes all blocks of an identity unfindable, and their storage free once unpinned. Returns the number of blocks.
  uint64_t EraseIdentity(const RootKey& root);
  // Does the disk I/O that evictions and erases left behind; to be called now and then.
  void FinishErases();
  // Copies as much of memory to disk as fits, chain by chain. For shutdown.
  void FlushToDisk(absl::Time deadline);

  // A consistent cut: every held block of a chain, parents first, and the event sequence it stands at.
  struct CutBlock {
    RootKey root;
    BlockKey parent;
    BlockKey key;
    uint32_t index = 0;
    std::array<std::optional<LossyFormats>, 3> lossy_formats;  // by set; none: not in it
  };
  struct Cut {
    uint64_t sequence = 0;
    std::vector<CutBlock> blocks;
    std::array<SetDigest, 3> digests;
    std::vector<BlockKey> boundaries;  // usable ones (WindowBoundaries::All), of `sequence` or later
  };
  Cut TakeCut() const;
  // Appends one digest event per set to the log.
  void AppendDigests();
  EventLog& events() { return events_; }

  using Books = StoreBooks;
  Books GetBooks() const;

  BlockPool& device() const { return *device_; }
  const LayoutFingerprint& layout_fingerprint() const { return layouts_.fingerprint(Tier::kDevice); }

 private:
  friend class BlockPin;
  friend class PrivateBlock;

  // Turns changes of the map into events and storage into free slots.
  class Backing : public SetObserver, public CopyStorage {
   public:
    explicit Backing(BlockStore& store) : store_(store) {}
    void OnStored(BlockSetKind set, const BlockNode& node) override;
    void OnTruncated(BlockSetKind set, const BlockNode& node) override;
    void OnBeside(const BlockNode& node, bool held) override;
    void Free(Tier tier, uint64_t slot) override;

   private:
    BlockStore& store_;
  };

  explicit BlockStore(const Options& options);
  void Unpin(BlockCopy* copy);
  void FreePrivate(BlockId block);
  BlockPin MakePin(BlockCopy* copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Distinct copies of the tier that may be pinned. Asks the file system for the disk's.
  uint64_t MaxPinned(Tier tier) const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether one more copy on the device can't be pinned.
  bool PinBoundReached() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return map_.pinned(Tier::kDevice) + private_blocks_ >= max_pinned_device_;
  }
  // Counts a copy that was made in the tier.
  void CountDemotion(const BlockHeader& made, Tier to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountMiss(MissReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { ++misses_[static_cast<size_t>(reason)]; }
  absl::StatusOr<BlockPin> PublishVerified(PrivateBlock&& block, const BlockHeader& header);
  // The nodes of ChainKeys, last one first; fewer when some are not held.
  std::vector<const BlockNode*> SpanNodes(const RootKey& root, const BlockKey& last_key, uint32_t first, uint32_t count,
                                          uint32_t group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The node's copy in the fastest tier among those whose lossy formats are accepted, or null.
  static BlockCopy* AcceptedCopy(const BlockNode& node, LossyFormats accepted);
  // Whether copies in that tier of this store can have such a header.
  bool Fits(const BlockHeader& header, Tier tier) const;
  uint32_t IndexOf(const BlockHeader& header) const;
  // Bytes of a pinned memory copy: in place where the host can address them, else copied into `buffer`.
  absl::StatusOr<std::span<const std::byte>> MemoryBytes(const BlockCopy& copy, std::vector<std::byte>& buffer) const;

  // Promotion (block_store_promote.cc). `pins` are the run so far; each call extends it or says why it can't.
  enum class Step { kMore, kStop };
  Step AcquireNext(MutexLock& lock, std::span<const BlockKey> keys, LossyFormats accepted, absl::Time deadline,
                   Acquired& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool WaitForTransit(MutexLock& lock, const BlockKey& key, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a device copy made of `source` could take the place of the one that may be there. REQUIRES: attached.
  static bool MayPromote(const BlockCopy& source);
  Step PromoteFromHost(MutexLock& lock, BlockCopy* source, absl::Time deadline, Acquired& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Step PromoteFromDisk(MutexLock& lock, std::span<const BlockKey> keys, LossyFormats accepted, absl::Time deadline,
                       Acquired& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Why AllocateDevice gave nothing.
  MissReason NoRoom(absl::Time deadline) const {
    return clock_->Now() >= deadline ? MissReason::kDeadline : MissReason::kPoolFull;
  }
  // Puts verified bytes of a copy in `from` into a device slot; returns the header of what is there now. INTERNAL: the
  // device failed.
  absl::StatusOr<BlockHeader> WriteToDevice(const BlockHeader& header, Tier from, std::span<const std::byte> bytes,
                                            BlockId slot);
  // `made`: the header of the copy in `slot`, or why there is none.
  Step FinishPromotion(BlockCopy* source, BlockId slot, const absl::StatusOr<BlockHeader>& made, Acquired& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Lose(BlockCopy* copy, MissReason reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Making room (block_store_evict.cc). Each may release and retake the lock.
  // None begins an eviction, a write or a wait at or after `deadline`.
  std::optional<BlockId> AllocateDevice(MutexLock& lock, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<BlockId> AllocateHost(MutexLock& lock, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The victim may come in use meanwhile, and stay.
  void EvictDevice(MutexLock& lock, BlockCopy* victim, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EvictFromMemory(MutexLock& lock, BlockCopy* victim, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DemoteToHost(MutexLock& lock, BlockCopy* victim, BlockId host_slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a copy made of one with `lossy_formats` would be new in the tier, or better than the one it has.
  bool Improves(const BlockNode& node, LossyFormats lossy_formats, Tier tier) const;
  // The same of the disk, and what memory holds of the node.
  bool DiskWants(const BlockNode& node) const;
  // Writes the chain up to `node` to disk, roots first, as far as it goes.
  void WriteChainToDisk(MutexLock& lock, BlockNode* node, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  struct DiskPayload {
    BlockHeader header;
    std::span<const std::byte> bytes;  // of the copy itself or of a buffer
    std::vector<std::byte> staged;
    std::vector<std::byte> converted;
  };
  // Fills in what the disk is to hold of a memory copy. DATA_LOSS: the copy is wrong. INTERNAL: the device failed.
  absl::Status PrepareForDisk(const BlockCopy& source, DiskPayload& payload);
  // True when the disk holds the block afterwards.
  bool WriteOneToDisk(MutexLock& lock, const BlockKey& key, absl::Time deadline, DiskPayload& payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Until nobody else writes that block to disk. False: the deadline came first.
  bool WaitToWrite(MutexLock& lock, const BlockKey& key, absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  BlockPool* const device_;
  BlockPool* const host_;
  DiskTier* const disk_;
  const Clock* const clock_;
  const uint32_t block_tokens_;
  const uint32_t max_group_;
  WindowBoundaries* const boundaries_;
  const double max_pinned_fraction_;
  const uint64_t max_pinned_device_;
  TierLayouts layouts_;
  const ShardRange shard_;  // of every block

  EventLog events_;
  mutable Mutex mu_;
  CondVar changed_;  // a promotion or a write to disk ended, or room may have appeared
  Backing backing_;
  PrefixMap map_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<BlockKey> in_transit_ ABSL_GUARDED_BY(mu_);  // being promoted
  absl::flat_hash_set<BlockKey> writing_ ABSL_GUARDED_BY(mu_);     // being written to disk
  uint32_t evictions_in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t private_blocks_ ABSL_GUARDED_BY(mu_) = 0;
  std::array<uint64_t, 3> evictions_ ABSL_GUARDED_BY(mu_){};
  std::array<uint64_t, kMissReasons> misses_ ABSL_GUARDED_BY(mu_){};
  std::array<uint64_t, 3> promoted_bytes_ ABSL_GUARDED_BY(mu_){};
  std::array<uint64_t, 3> demoted_bytes_ ABSL_GUARDED_BY(mu_){};
  std::array<uint64_t, 3> lossy_promotions_ ABSL_GUARDED_BY(mu_){};
  std::array<uint64_t, 3> lossy_demotions_ ABSL_GUARDED_BY(mu_){};
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_BLOCK_STORE_H_
