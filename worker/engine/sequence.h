// A growing block table: a resumed prefix of pinned blocks, then private blocks that are sealed as they fill.
#ifndef KVMESH_WORKER_ENGINE_SEQUENCE_H_
#define KVMESH_WORKER_ENGINE_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvstore/base/status.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/tiers/block_store.h"
#include "worker/engine/resumer.h"
#include "worker/engine/single_flight.h"

namespace kvmesh {

// Not thread safe. Outlived by its BlockStore. Positions below ready() have K/V in all layers; sealed blocks are never
// written again (contract 5).
class Sequence {
 public:
  // `publish` false: nothing is sealed and nothing was resumed.
  Sequence(BlockStore& store, const RootKey& root, bool publish, std::vector<uint32_t> tokens);

  // Takes over a resumed prefix. REQUIRES: fresh.
  void Adopt(ResumeResult resumed);

  const std::vector<uint32_t>& tokens() const { return tokens_; }
  const RootKey& root() const { return root_; }
  // Positions whose K/V is complete.
  uint64_t ready() const;
  uint64_t written(int32_t layer) const { return written_[static_cast<size_t>(layer)]; }
  // c of an n-token sequence: min(ready, n-1); the last token is always computed (contract 4).
  uint64_t computed_tokens() const;
  std::vector<uint32_t> block_table() const;
  std::span<const BlockKey> keys() const { return keys_; }

  // Adds tokens at the end. INVALID_ARGUMENT: beyond kMaxPromptTokens.
  absl::Status Extend(std::span<const uint32_t> tokens);

  // Slots to write for [start, start + count), -1 for positions that are ready already. Allocates blocks as needed.
  // INVALID_ARGUMENT: start leaves a gap after what one of the layers has, or the end is beyond the known tokens.
  // RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED: as BlockStore::Allocate; what was allocated for this call is given back.
  absl::StatusOr<std::vector<int64_t>> PrepareSlots(uint64_t start, uint64_t count, int32_t first_layer, int32_t layers,
                                                    absl::Time deadline = absl::InfiniteFuture());
  // The same for all layers.
  absl::StatusOr<std::vector<int64_t>> PrepareSlots(uint64_t start, uint64_t count,
                                                    absl::Time deadline = absl::InfiniteFuture()) {
    return PrepareSlots(start, count, 0, static_cast<int32_t>(written_.size()), deadline);
  }

  // The K/V of layers [first_layer, first_layer + layers) is written up to position `end`. Seals every block that is
  // complete.
  void MarkWritten(int32_t first_layer, int32_t layers, uint64_t end);
  void MarkWritten(uint64_t end) { MarkWritten(0, static_cast<int32_t>(written_.size()), end); }

  // Keeps the first `tokens`. A sealed block that is cut is copied, its content stays for others. INVALID_ARGUMENT:
  // more than there are. RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED: no room for the copy; nothing changed.
  absl::Status Truncate(uint64_t tokens, absl::Time deadline = absl::InfiniteFuture());

  // Sealed blocks shared, private ones copied. RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED: no room for the copies.
  absl::StatusOr<std::unique_ptr<Sequence>> Fork(absl::Time deadline = absl::InfiniteFuture());

 private:
  // Exactly one is set.
  struct Entry {
    BlockPin sealed;
    PrivateBlock own;
    BlockId block() const { return sealed ? sealed.block() : own.block(); }
  };

  void SealComplete();
  absl::StatusOr<PrivateBlock> CopyOf(BlockId block, absl::Time deadline);

  BlockStore& store_;
  const RootKey root_;
  bool publish_;
  const uint32_t block_tokens_;
  std::vector<uint32_t> tokens_;
  std::vector<BlockKey> keys_;  // of all full blocks of tokens_
  std::vector<Entry> entries_;
  size_t sealed_ = 0;              // leading entries that are sealed
  LossyFormats lossy_formats_;     // union over the prefix
  std::vector<uint64_t> written_;  // by layer: positions with K/V
  SingleFlight::Claim claim_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_ENGINE_SEQUENCE_H_
