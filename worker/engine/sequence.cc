#include "worker/engine/sequence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvmesh {

Sequence::Sequence(std::vector<CacheGroup> groups, const RootKey& root, bool publish, std::vector<uint32_t> tokens)
    : root_(root),
      publish_(publish),
      block_tokens_(static_cast<uint32_t>(groups[0].store->device().layout().block_tokens)),
      tokens_(std::move(tokens)),
      accepted_(tokens_.size()),
      keys_(ComputeBlockKeys(RootAsParent(root), tokens_, block_tokens_)) {
  for (CacheGroup& group : groups) {
    for (size_t i = 0; i < group.layers.size(); ++i) {
      const auto layer = static_cast<size_t>(group.layers[i]);
      if (places_.size() <= layer) places_.resize(layer + 1);
      places_[layer] = {tables_.size(), static_cast<int32_t>(i)};
    }
    tables_.emplace_back(std::move(group));
  }
  written_.resize(places_.size());
}

Sequence::Sequence(const Sequence& of, std::vector<GroupTable> tables)
    : tables_(std::move(tables)),
      places_(of.places_),
      root_(of.root_),
      publish_(of.publish_),
      block_tokens_(of.block_tokens_),
      tokens_(of.tokens_),
      accepted_(of.accepted_),
      keys_(of.keys_),
      sealed_(of.sealed_),
      lossy_formats_(of.lossy_formats_),
      written_(of.written_) {}

void Sequence::Adopt(ResumeResult resumed) {
  sealed_ = resumed.blocks();
  for (size_t group = 0; group < tables_.size(); ++group) {
    for (const HeldBlock& block : resumed.held[group]) {
      lossy_formats_ = lossy_formats_.Union(block.pin.header().lossy_formats);
    }
    tables_[group].Adopt(std::move(resumed.held[group]), sealed_);
  }
  written_.assign(written_.size(), sealed_ * uint64_t{block_tokens_});
  claim_ = std::move(resumed.to_compute);
}

uint64_t Sequence::ready() const { return *std::min_element(written_.begin(), written_.end()); }

uint64_t Sequence::computed_tokens() const {
  return tokens_.empty() ? 0 : std::min<uint64_t>(ready(), tokens_.size() - 1);
}

absl::Status Sequence::Extend(std::span<const uint32_t> tokens) {
  if (tokens.empty()) return absl::OkStatus();
  if (accepted_ < tokens_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tokens: behind ", tokens_.size() - accepted_,
                                                   " drafts that are neither accepted nor dropped yet"));
  }
  KVMESH_RETURN_IF_ERROR(Append(tokens));
  accepted_ = tokens_.size();
  return absl::OkStatus();
}

absl::Status Sequence::ExtendWithDrafts(std::span<const uint32_t> tokens) { return Append(tokens); }

absl::Status Sequence::Append(std::span<const uint32_t> tokens) {
  if (tokens_.size() + tokens.size() > kMaxPromptTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens: ", tokens_.size() + tokens.size(), ", the limit is ", kMaxPromptTokens));
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  const uint64_t done = keys_.size() * uint64_t{block_tokens_};
  const BlockKey parent = keys_.empty() ? RootAsParent(root_) : keys_.back();
  const std::vector<BlockKey> more = ComputeBlockKeys(parent, std::span(tokens_).subspan(done), block_tokens_);
  keys_.insert(keys_.end(), more.begin(), more.end());
  return absl::OkStatus();
}

absl::StatusOr<Sequence::GroupSlots> Sequence::PrepareSlots(uint64_t start, uint64_t count, int32_t first_layer,
                                                            int32_t layers, absl::Time deadline) {
  const uint64_t end = start + count;
  if (end > tokens_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("start_position: the end ", end, " is beyond the ", tokens_.size(), " known tokens"));
  }
  const auto first = written_.begin() + first_layer;
  const uint64_t written = *std::min_element(first, first + layers);
  if (start > written) {
    return absl::InvalidArgumentError(
        absl::StrCat("start_position: ", start, " leaves a gap after position ", written));
  }
  for (GroupTable& table : tables_) table.DropUnseen(std::min(start, settled()));
  const size_t blocks_before = tables_[0].size();
  const size_t blocks = static_cast<size_t>((end + block_tokens_ - 1) / block_tokens_);
  for (GroupTable& table : tables_) {
    const absl::Status grown = table.Grow(blocks, deadline);
    if (grown.ok()) continue;
    for (GroupTable& other : tables_) other.Shrink(blocks_before);
    return grown;
  }
  const uint64_t ready_until = ready();
  GroupSlots slots(tables_.size());
  for (size_t group = 0; group < tables_.size(); ++group) {
    slots[group].reserve(count);
    for (uint64_t position = start; position < end; ++position) {
      slots[group].push_back(position < ready_until ? -1 : tables_[group].Slot(position));
    }
  }
  return slots;
}

void Sequence::MarkWritten(int32_t first_layer, int32_t layers, uint64_t end) {
  for (int32_t layer = first_layer; layer < first_layer + layers; ++layer) {
    uint64_t& written = written_[static_cast<size_t>(layer)];
    written = std::max(written, end);
  }
  SealComplete();
}

absl::Status Sequence::Accept(uint64_t end) {
  if (end < accepted_ || end > tokens_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tokens: ", end, " to accept, must be ", accepted_,
                                                   " (accepted already) to ", tokens_.size(), " (known)"));
  }
  Keep(end);
  accepted_ = end;
  SealComplete();
  return absl::OkStatus();
}

void Sequence::SealComplete() {
  while (publish_ && sealed_ < keys_.size() && (sealed_ + 1) * uint64_t{block_tokens_} <= settled()) {
    const BlockStore::SealInfo info{.root = root_,
                                    .key = keys_[sealed_],
                                    .parent = sealed_ == 0 ? RootAsParent(root_) : keys_[sealed_ - 1],
                                    .index = static_cast<uint32_t>(sealed_),
                                    .lossy_formats = lossy_formats_};
    absl::Status sealed;
    for (GroupTable& table : tables_) {
      if (sealed.ok()) sealed = table.Seal(info);
    }
    claim_.FinishThrough(info.key);
    if (!sealed.ok()) {
      // The chain was erased under this sequence: it goes on with blocks of its own that nobody can find.
      publish_ = false;
      claim_.Reset();
      break;
    }
    ++sealed_;
  }
}

bool Sequence::Regain(uint64_t tokens, absl::Time deadline) {
  for (GroupTable& table : tables_) {
    const NeededBlocks needed = BlocksSeenFrom(table.group(), std::max<uint64_t>(tokens, 1) - 1, tokens, block_tokens_);
    for (uint32_t i = 0; i < needed.end; ++i) {
      if (!needed.Has(i) || table.held(i)) continue;
      if (i >= keys_.size() || !table.Regain(i, keys_[i], lossy_formats_, deadline)) return false;
    }
  }
  return true;
}

absl::Status Sequence::Truncate(uint64_t tokens, absl::Time deadline) {
  if (tokens > tokens_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tokens: ", tokens, " to keep, the sequence has ", tokens_.size()));
  }
  if (tokens >= accepted_) {
    Keep(tokens);
    return absl::OkStatus();
  }
  const size_t whole = static_cast<size_t>(tokens / block_tokens_);
  const size_t blocks = whole + (tokens % block_tokens_ != 0 ? 1 : 0);
  claim_.Reset();
  if (tokens <= ready() && !Regain(tokens, deadline)) {
    for (GroupTable& table : tables_) table.Shrink(0);
    written_.assign(written_.size(), 0);
  }
  for (GroupTable& table : tables_) {
    if (blocks > whole && table.size() > whole) KVMESH_RETURN_IF_ERROR(table.MakeOwn(whole, deadline));
  }
  Keep(tokens);
  sealed_ = std::min({sealed_, whole, tables_[0].size()});
  accepted_ = tokens;
  return absl::OkStatus();
}

void Sequence::Keep(uint64_t tokens) {
  for (GroupTable& table : tables_) table.Shrink(static_cast<size_t>((tokens + block_tokens_ - 1) / block_tokens_));
  tokens_.resize(static_cast<size_t>(tokens));
  keys_.resize(static_cast<size_t>(tokens / block_tokens_));
  for (uint64_t& written : written_) written = std::min(written, tokens);
}

absl::StatusOr<std::unique_ptr<Sequence>> Sequence::Fork(absl::Time deadline) {
  std::vector<GroupTable> tables;
  for (const GroupTable& table : tables_) {
    absl::StatusOr<GroupTable> copy = table.Fork(deadline);
    if (!copy.ok()) return copy.status();
    tables.push_back(*std::move(copy));
  }
  return std::unique_ptr<Sequence>(new Sequence(*this, std::move(tables)));
}

}  // namespace kvmesh
