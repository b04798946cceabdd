// Growing block tables, one for each layer group: a resumed prefix of pinned blocks, then private blocks that are
// sealed as they fill. Blocks that no later position sees are let go.
#ifndef KVMESH_WORKER_ENGINE_SEQUENCE_H_
#define KVMESH_WORKER_ENGINE_SEQUENCE_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvstore/base/status.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/tiers/block_store.h"
#include "worker/engine/group_table.h"
#include "worker/engine/resumer.h"
#include "worker/engine/single_flight.h"

namespace kvmesh {

// Not thread safe. Outlived by its groups' stores. Positions below ready() have K/V in all layers; sealed blocks are
// never written again (contract 5). Tokens are accepted, or drafts behind the accepted ones, which may be dropped
// again: a block is sealed when all its positions are ready and accepted, so that nobody ever finds a draft.
class Sequence {
 public:
  // `publish` false: nothing is sealed and nothing was resumed. REQUIRES: at least one group; the groups' layers are 0,
  // 1, 2, ...; their blocks hold equally many tokens.
  Sequence(std::vector<CacheGroup> groups, const RootKey& root, bool publish, std::vector<uint32_t> tokens);

  // Takes over a resumed prefix. REQUIRES: fresh.
  void Adopt(ResumeResult resumed);

  const std::vector<uint32_t>& tokens() const { return tokens_; }
  const RootKey& root() const { return root_; }
  // Positions whose K/V is complete.
  uint64_t ready() const;
  uint64_t written(int32_t layer) const { return written_[static_cast<size_t>(layer)]; }
  // c of an n-token sequence: min(ready, n-1); the last token is always computed (contract 4).
  uint64_t computed_tokens() const;
  size_t groups() const { return tables_.size(); }
  const GroupTable& table(size_t group) const { return tables_[group]; }
  // The group of a layer, and the layer's place among the group's.
  struct LayerPlace {
    size_t group = 0;
    int32_t layer = 0;
  };
  LayerPlace PlaceOf(int32_t layer) const { return places_[static_cast<size_t>(layer)]; }
  // Of all full blocks, those with drafts too.
  std::span<const BlockKey> keys() const { return keys_; }
  // Leading tokens that are accepted; the others are drafts. Tokens given at the start are accepted.
  uint64_t accepted() const { return accepted_; }

  // Adds accepted tokens at the end. INVALID_ARGUMENT: beyond kMaxPromptTokens, or behind drafts.
  absl::Status Extend(std::span<const uint32_t> tokens);
  // Adds drafts at the end. INVALID_ARGUMENT: beyond kMaxPromptTokens.
  absl::Status ExtendWithDrafts(std::span<const uint32_t> tokens);
  // Accepts the drafts below position `end`, drops those from there on, and seals what is complete. Needs no room.
  // INVALID_ARGUMENT: fewer than are accepted, or more than there are.
  absl::Status Accept(uint64_t end);

  // Slots to write for [start, start + count), by group, -1 for positions that are ready already. Lets go of blocks
  // that neither these positions nor those not settled yet see, then allocates blocks as needed. INVALID_ARGUMENT:
  // start leaves a gap after what one of the layers has, or the end is beyond the known tokens. RESOURCE_EXHAUSTED,
  // DEADLINE_EXCEEDED: as BlockStore::Allocate; what was allocated for this call is given back.
  using GroupSlots = std::vector<std::vector<int64_t>>;
  absl::StatusOr<GroupSlots> PrepareSlots(uint64_t start, uint64_t count, int32_t first_layer, int32_t layers,
                                          absl::Time deadline);
  // The same for all layers.
  absl::StatusOr<GroupSlots> PrepareSlots(uint64_t start, uint64_t count, absl::Time deadline) {
    return PrepareSlots(start, count, 0, static_cast<int32_t>(written_.size()), deadline);
  }

  // The K/V of layers [first_layer, first_layer + layers) is written up to position `end`. Seals every block that is
  // complete and accepted.
  void MarkWritten(int32_t first_layer, int32_t layers, uint64_t end);
  void MarkWritten(uint64_t end) { MarkWritten(0, static_cast<int32_t>(written_.size()), end); }

  // Keeps the first `tokens`; drafts among them stay drafts. Dropping drafts alone needs no room. Else: a sealed block
  // that is cut is copied, its content stays for others. Where blocks of a window were let go of and are gone, nothing
  // is ready afterwards: the tokens are to be computed again. INVALID_ARGUMENT: more than there are.
  // RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED: no room for the copy; nothing that can be seen changed.
  absl::Status Truncate(uint64_t tokens, absl::Time deadline);

  // Sealed blocks shared, private ones copied; drafts are drafts of the fork too. RESOURCE_EXHAUSTED,
  // DEADLINE_EXCEEDED: no room for the copies.
  absl::StatusOr<std::unique_ptr<Sequence>> Fork(absl::Time deadline);

 private:
  Sequence(const Sequence& of, std::vector<GroupTable> tables);
  absl::Status Append(std::span<const uint32_t> tokens);
  void Keep(uint64_t tokens);
  void SealComplete();
  // Positions that won't be computed again unless they are truncated.
  uint64_t settled() const { return std::min(ready(), accepted_); }
  // Pins what the first `tokens` need to go on, or to compute the last one again, and was let go of. False: some of it
  // is gone.
  bool Regain(uint64_t tokens, absl::Time deadline);

  std::vector<GroupTable> tables_;
  std::vector<LayerPlace> places_;  // by layer
  const RootKey root_;
  bool publish_;
  const uint32_t block_tokens_;
  std::vector<uint32_t> tokens_;
  uint64_t accepted_;              // leading tokens_ that are no drafts
  std::vector<BlockKey> keys_;     // of all full blocks of tokens_
  size_t sealed_ = 0;              // leading blocks that are sealed in every group
  LossyFormats lossy_formats_;     // union over the prefix
  std::vector<uint64_t> written_;  // by layer: positions with K/V
  SingleFlight::Claim claim_;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_ENGINE_SEQUENCE_H_
