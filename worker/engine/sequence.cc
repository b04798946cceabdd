#include "worker/engine/sequence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvmesh {

Sequence::Sequence(BlockStore& store, const RootKey& root, bool publish, std::vector<uint32_t> tokens)
    : store_(store),
      root_(root),
      publish_(publish),
      block_tokens_(static_cast<uint32_t>(store.device().layout().block_tokens)),
      tokens_(std::move(tokens)),
      keys_(ComputeBlockKeys(RootAsParent(root), tokens_, block_tokens_)),
      written_(static_cast<size_t>(store.device().layout().layers), 0) {}

void Sequence::Adopt(ResumeResult resumed) {
  for (BlockPin& pin : resumed.pins) {
    lossy_formats_ = lossy_formats_.Union(pin.header().lossy_formats);
    entries_.push_back({std::move(pin), {}});
  }
  sealed_ = entries_.size();
  written_.assign(written_.size(), sealed_ * uint64_t{block_tokens_});
  claim_ = std::move(resumed.to_compute);
}

uint64_t Sequence::ready() const { return *std::min_element(written_.begin(), written_.end()); }

uint64_t Sequence::computed_tokens() const {
  return tokens_.empty() ? 0 : std::min<uint64_t>(ready(), tokens_.size() - 1);
}

std::vector<uint32_t> Sequence::block_table() const {
  std::vector<uint32_t> table;
  table.reserve(entries_.size());
  for (const Entry& entry : entries_) table.push_back(entry.block().value());
  return table;
}

absl::Status Sequence::Extend(std::span<const uint32_t> tokens) {
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

absl::StatusOr<std::vector<int64_t>> Sequence::PrepareSlots(uint64_t start, uint64_t count, int32_t first_layer,
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
  const size_t entries_before = entries_.size();
  while (entries_.size() * uint64_t{block_tokens_} < end) {
    absl::StatusOr<PrivateBlock> block = store_.Allocate(deadline);
    if (!block.ok()) {
      entries_.resize(entries_before);
      return block.status();
    }
    entries_.push_back({{}, *std::move(block)});
  }
  const uint64_t ready_until = ready();
  std::vector<int64_t> slots;
  slots.reserve(count);
  for (uint64_t position = start; position < end; ++position) {
    const BlockId block = entries_[position / block_tokens_].block();
    slots.push_back(position < ready_until
                        ? -1
                        : int64_t{block.value()} * block_tokens_ + static_cast<int64_t>(position % block_tokens_));
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

void Sequence::SealComplete() {
  const uint64_t ready_until = ready();
  while (publish_ && sealed_ < keys_.size() && (sealed_ + 1) * uint64_t{block_tokens_} <= ready_until) {
    const BlockStore::SealInfo info{.root = root_,
                                    .key = keys_[sealed_],
                                    .parent = sealed_ == 0 ? RootAsParent(root_) : keys_[sealed_ - 1],
                                    .index = static_cast<uint32_t>(sealed_),
                                    .lossy_formats = lossy_formats_};
    Entry& entry = entries_[sealed_];
    absl::StatusOr<BlockPin> pin = store_.Seal(std::move(entry.own), info);
    claim_.FinishThrough(info.key);
    if (!pin.ok()) {
      // The chain was erased under this sequence: it goes on with blocks of its own that nobody can find.
      publish_ = false;
      claim_.Reset();
      return;
    }
    entry.sealed = *std::move(pin);
    ++sealed_;
  }
}

absl::StatusOr<PrivateBlock> Sequence::CopyOf(BlockId block, absl::Time deadline) {
  absl::StatusOr<PrivateBlock> copy = store_.Allocate(deadline);
  if (!copy.ok()) return copy;
  std::vector<std::byte> bytes(static_cast<size_t>(store_.device().layout().block_bytes));
  KVMESH_RETURN_IF_ERROR(store_.device().Read(block, bytes));
  KVMESH_RETURN_IF_ERROR(store_.device().Write(copy->block(), bytes));
  return copy;
}

absl::Status Sequence::Truncate(uint64_t tokens, absl::Time deadline) {
  if (tokens > tokens_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tokens: ", tokens, " to keep, the sequence has ", tokens_.size()));
  }
  const size_t whole = static_cast<size_t>(tokens / block_tokens_);
  const bool partial = tokens % block_tokens_ != 0;
  if (partial && whole < sealed_) {
    absl::StatusOr<PrivateBlock> copy = CopyOf(entries_[whole].block(), deadline);
    if (!copy.ok()) return copy.status();
    entries_[whole] = {{}, *std::move(copy)};
  }
  if (entries_.size() > whole + (partial ? 1 : 0)) entries_.resize(whole + (partial ? 1 : 0));
  sealed_ = std::min(sealed_, whole);
  tokens_.resize(static_cast<size_t>(tokens));
  keys_.resize(whole);
  for (uint64_t& written : written_) written = std::min(written, tokens);
  claim_.Reset();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Sequence>> Sequence::Fork(absl::Time deadline) {
  auto fork = std::make_unique<Sequence>(store_, root_, publish_, tokens_);
  for (const Entry& entry : entries_) {
    if (entry.sealed) {
      fork->entries_.push_back({store_.Share(entry.sealed), {}});
      continue;
    }
    absl::StatusOr<PrivateBlock> copy = CopyOf(entry.own.block(), deadline);
    if (!copy.ok()) return copy.status();
    fork->entries_.push_back({{}, *std::move(copy)});
  }
  fork->sealed_ = sealed_;
  fork->lossy_formats_ = lossy_formats_;
  fork->written_ = written_;
  return fork;
}

}  // namespace kvmesh
