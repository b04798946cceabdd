#include "kvstore/tiers/block_store.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kvstore/base/check.h"
#include "kvstore/block/key_chain.h"

namespace kvmesh {
namespace {

uint64_t PinLimit(uint64_t capacity, double fraction) {
  return std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(capacity) * fraction));
}

}  // namespace

BlockPin& BlockPin::operator=(BlockPin&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  store_ = std::exchange(other.store_, nullptr);
  copy_ = std::exchange(other.copy_, nullptr);
  return *this;
}

void BlockPin::Reset() {
  if (copy_ != nullptr) store_->Unpin(std::exchange(copy_, nullptr));
  store_ = nullptr;
}

PrivateBlock& PrivateBlock::operator=(PrivateBlock&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  store_ = std::exchange(other.store_, nullptr);
  block_ = other.block_;
  return *this;
}

void PrivateBlock::Reset() {
  if (store_ != nullptr) std::exchange(store_, nullptr)->FreePrivate(block_);
}

void BlockStore::Backing::OnStored(BlockSetKind set, const BlockNode& node) {
  store_.events_.Append({.kind = StoreEvent::Kind::kStored,
                         .set = set,
                         .root = node.root,
                         .parent = node.parent_key,
                         .key = node.key,
                         .index = node.index,
                         .lossy_formats = node.CopyFor(set)->header.lossy_formats});
}

void BlockStore::Backing::OnTruncated(BlockSetKind set, const BlockNode& node) {
  store_.events_.Append({.kind = StoreEvent::Kind::kTruncated, .set = set, .key = node.key});
}

void BlockStore::Backing::OnBeside(const BlockNode& node, bool held) {
  if (store_.boundaries_ == nullptr) return;
  if (held) {
    store_.boundaries_->OnHeld(node.chain_key, node.parent_key, node.index);
  } else {
    store_.boundaries_->OnGone(node.chain_key);
  }
}

void BlockStore::Backing::Free(Tier tier, uint64_t slot) {
  switch (tier) {
    case Tier::kDevice:
      store_.device_->Free(BlockId(static_cast<uint32_t>(slot)));
      break;
    case Tier::kHost:
      store_.host_->Free(BlockId(static_cast<uint32_t>(slot)));
      break;
    case Tier::kDisk:
      store_.disk_->Erase(DiskSlot(slot));
      break;
  }
  store_.changed_.NotifyAll();
}

absl::StatusOr<std::unique_ptr<BlockStore>> BlockStore::Create(const Options& options) {
  if (options.device == nullptr) return absl::InvalidArgumentError("device: a device pool is required");
  if (options.host != nullptr && options.host->memory_kind() != MemoryKind::kHost) {
    return absl::InvalidArgumentError("host: the host tier must be host memory");
  }
  const BlockLayout& layout = options.device->layout();
  for (const auto& [option, other] : {std::pair("host", options.host != nullptr ? options.host->layout() : layout),
                                      {"disk_layout", options.disk_layout.value_or(layout)}}) {
    const absl::Status status = TierLayouts::Comparable(layout, other);
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(option, ": ", status.message()));
  }
  if (options.policy == nullptr) return absl::InvalidArgumentError("policy: an eviction policy is required");
  if (options.block_tokens == 0) return absl::InvalidArgumentError("block_tokens: must be at least 1");
  if (!(options.max_pinned_fraction > 0) || options.max_pinned_fraction > 1) {
    return absl::InvalidArgumentError("max_pinned_fraction: must be above 0 and at most 1");
  }
  auto store = std::unique_ptr<BlockStore>(new BlockStore(options));
  store->AdoptRecovered();
  return store;
}

BlockStore::BlockStore(const Options& options)
    : device_(options.device),
      host_(options.host),
      disk_(options.disk),
      clock_(options.clock),
      block_tokens_(options.block_tokens),
      max_group_(options.max_group),
      boundaries_(options.boundaries),
      max_pinned_fraction_(options.max_pinned_fraction),
      max_pinned_device_(PinLimit(options.device->capacity(), options.max_pinned_fraction)),
      layouts_({options.device->layout(), (options.host != nullptr ? options.host : options.device)->layout(),
                options.disk_layout.value_or(options.device->layout())}),
      shard_(WholeShard(device_->layout())),
      events_(options.event_capacity),
      backing_(*this),
      map_(backing_, backing_, options.policy) {}

BlockStore::~BlockStore() {
  MutexLock lock(mu_);
  KVMESH_CHECK(private_blocks_ == 0, "a block store ends with private blocks outstanding");
}

void BlockStore::AdoptRecovered() {
  if (disk_ == nullptr) return;
  MutexLock lock(mu_);
  std::vector<RecoveredBlock> recovered = disk_->TakeRecovered();
  std::sort(recovered.begin(), recovered.end(), [](const RecoveredBlock& a, const RecoveredBlock& b) {
    return a.header.start_position < b.header.start_position;
  });
  for (const RecoveredBlock& block : recovered) {
    const bool usable = Fits(block.header, Tier::kDisk) &&
                        map_.Add(block.header, IndexOf(block.header), Tier::kDisk, block.slot.value()).ok();
    if (!usable) disk_->Erase(block.slot);
  }
  lock.Unlock();
  FinishErases();
}

uint32_t BlockStore::IndexOf(const BlockHeader& header) const {
  return static_cast<uint32_t>(header.start_position / block_tokens_);
}

void BlockStore::Unpin(BlockCopy* copy) {
  {
    MutexLock lock(mu_);
    map_.Unpin(copy);
  }
  changed_.NotifyAll();
}

void BlockStore::FreePrivate(BlockId block) {
  {
    MutexLock lock(mu_);
    --private_blocks_;
    device_->Free(block);
  }
  changed_.NotifyAll();
}

BlockPin BlockStore::MakePin(BlockCopy* copy) {
  map_.Pin(copy);
  return BlockPin(this, copy);
}

uint64_t BlockStore::MaxPinned(Tier tier) const {
  switch (tier) {
    case Tier::kDevice:
      return max_pinned_device_;
    case Tier::kHost:
      return host_ == nullptr ? 0 : PinLimit(host_->capacity(), max_pinned_fraction_);
    case Tier::kDisk:
      break;
  }
  return disk_ == nullptr ? 0 : PinLimit(disk_->usage().capacity_blocks, max_pinned_fraction_);
}

bool BlockStore::Fits(const BlockHeader& header, Tier tier) const {
  return layouts_.Fits(header, tier) && header.group <= max_group_ && header.shard == shard_ &&
         header.start_position % block_tokens_ == 0 &&
         header.start_position / block_tokens_ <= std::numeric_limits<uint32_t>::max();
}

BlockStore::Match BlockStore::Lookup(std::span<const BlockKey> keys, LossyFormats accepted) const {
  MutexLock lock(mu_);
  Match match;
  // The sets are prefix-closed, so the first key that is absent from a set ends its run.
  for (const BlockSetKind set : kAllSets) {
    uint32_t& run = match.blocks[static_cast<size_t>(set)];
    for (const BlockKey& key : keys) {
      const BlockNode* node = map_.Find(key);
      if (node == nullptr || !node->HitIn(set, accepted)) break;
      ++run;
    }
  }
  return match;
}

absl::StatusOr<PrivateBlock> BlockStore::Allocate(absl::Time deadline) {
  MutexLock lock(mu_);
  if (PinBoundReached()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("pinned blocks: the limit of ", max_pinned_device_, " is reached"));
  }
  ++private_blocks_;
  const std::optional<BlockId> block = AllocateDevice(lock, deadline);
  if (!block) {
    --private_blocks_;
    if (NoRoom(deadline) == MissReason::kDeadline) {
      return absl::DeadlineExceededError("device pool: the deadline came before there was room");
    }
    return absl::ResourceExhaustedError(absl::StrCat("device pool: all ", device_->capacity(), " blocks are in use"));
  }
  return PrivateBlock(this, *block);
}

absl::StatusOr<BlockPin> BlockStore::Seal(PrivateBlock&& block, const SealInfo& info) {
  KVMESH_CHECK(block.store_ == this, "sealed what is not a private block of this store");
  BlockHeader header;
  header.root = info.root;
  header.key = info.key;
  header.parent = info.parent;
  header.group = info.group;
  header.shard = shard_;
  header.start_position = uint64_t{info.index} * block_tokens_;
  header.layout = layout_fingerprint();
  header.format = device_->layout().format;
  header.lossy_formats = info.lossy_formats;
  header.seal_time = absl::FromUnixMicros(absl::ToUnixMicros(clock_->Now()));
  header.payload_bytes = layouts_.block_bytes(Tier::kDevice);
  std::vector<std::byte> buffer;
  BlockCopy private_copy;
  private_copy.slot = block.block().value();
  absl::StatusOr<std::span<const std::byte>> bytes = MemoryBytes(private_copy, buffer);
  if (!bytes.ok()) return bytes.status();
  header.checksum = ComputeChecksum(header, *bytes);
  return PublishVerified(std::move(block), header);
}

absl::StatusOr<BlockPin> BlockStore::Publish(PrivateBlock&& block, const BlockHeader& header) {
  KVMESH_CHECK(block.store_ == this, "published what is not a private block of this store");
  if (!Fits(header, Tier::kDevice)) {
    MutexLock lock(mu_);
    CountMiss(MissReason::kCorrupt);
    return absl::DataLossError("header: the copy was sealed under another layout, format, group, shard or position");
  }
  std::vector<std::byte> buffer;
  BlockCopy private_copy;
  private_copy.slot = block.block().value();
  absl::StatusOr<std::span<const std::byte>> bytes = MemoryBytes(private_copy, buffer);
  if (!bytes.ok()) return bytes.status();
  if (absl::Status verified = VerifyBlock(header, *bytes); !verified.ok()) {
    MutexLock lock(mu_);
    CountMiss(MissReason::kCorrupt);
    return verified;
  }
  return PublishVerified(std::move(block), header);
}

BlockCopy* BlockStore::AcceptedCopy(const BlockNode& node, LossyFormats accepted) {
  for (const Tier tier : kAllTiers) {
    BlockCopy* copy = node.copy(tier);
    if (copy != nullptr && copy->header.lossy_formats.SubsetOf(accepted)) return copy;
  }
  return nullptr;
}

absl::StatusOr<BlockPin> BlockStore::PublishVerified(PrivateBlock&& block, const BlockHeader& header) {
  MutexLock lock(mu_);
  const absl::StatusOr<BlockNode*> added = map_.Add(header, IndexOf(header), Tier::kDevice, block.block().value());
  if (!added.ok() && !absl::IsAlreadyExists(added.status())) return added.status();
  block.store_ = nullptr;  // the slot is the map's now, or free
  --private_blocks_;
  if (!added.ok()) {
    device_->Free(block.block());
    changed_.NotifyAll();
    return MakePin(map_.Find(FoundUnder(header))->copy(Tier::kDevice));
  }
  BlockPin pin = MakePin((*added)->copy(Tier::kDevice));
  BlockCopy* host = (*added)->copy(Tier::kHost);
  if (host != nullptr && map_.CanEvict(*host)) map_.Evict(host);
  return pin;
}

BlockPin BlockStore::Share(const BlockPin& pin) {
  MutexLock lock(mu_);
  return MakePin(pin.copy_);
}

std::vector<const BlockNode*> BlockStore::SpanNodes(const RootKey& root, const BlockKey& last_key, uint32_t first,
                                                    uint32_t count, uint32_t group) const {
  std::vector<const BlockNode*> nodes;
  BlockKey key = last_key;
  for (uint64_t end = uint64_t{first} + count; end > first; --end) {
    const BlockNode* node = map_.Find(ComputeGroupKey(key, group));
    if (node == nullptr || node->group != group || node->root != root || node->index + uint64_t{1} != end) break;
    nodes.push_back(node);
    key = node->parent_key;
  }
  return nodes;
}

absl::StatusOr<std::vector<BlockKey>> BlockStore::ChainKeys(const RootKey& root, const BlockKey& last_key,
                                                            uint32_t first, uint32_t count, uint32_t group) const {
  MutexLock lock(mu_);
  const std::vector<const BlockNode*> nodes = SpanNodes(root, last_key, first, count, group);
  if (count == 0 || nodes.size() < count) return absl::NotFoundError("chain: the span is not held");
  std::vector<BlockKey> keys;
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) keys.push_back((*it)->chain_key);
  return keys;
}

absl::StatusOr<std::vector<BlockPin>> BlockStore::PinForRead(const RootKey& root, const BlockKey& last_key,
                                                             uint32_t first, uint32_t count, LossyFormats accepted,
                                                             uint32_t group) {
  std::array<uint64_t, 3> limits;
  for (const Tier tier : kAllTiers) limits[static_cast<size_t>(tier)] = MaxPinned(tier);
  MutexLock lock(mu_);
  std::vector<BlockCopy*> copies;
  std::array<uint64_t, 3> newly_pinned{};
  const std::vector<const BlockNode*> nodes = SpanNodes(root, last_key, first, count, group);
  if (count == 0 || nodes.size() < count) return absl::NotFoundError("chain: the span is not held");
  for (const BlockNode* node : nodes) {
    BlockCopy* copy = AcceptedCopy(*node, accepted);
    if (copy == nullptr) return absl::NotFoundError("chain: held in a format not accepted");
    copies.push_back(copy);
    if (copy->pins == 0) ++newly_pinned[static_cast<size_t>(copy->tier)];
  }
  for (const Tier tier : kAllTiers) {
    const size_t t = static_cast<size_t>(tier);
    const uint64_t held = map_.pinned(tier) + (tier == Tier::kDevice ? private_blocks_ : 0);
    if (newly_pinned[t] == 0 || held + newly_pinned[t] <= limits[t]) continue;
    return absl::ResourceExhaustedError(absl::StrCat("pinned blocks: the limit of ", limits[t], " is reached"));
  }
  std::vector<BlockPin> pins;
  pins.reserve(count);
  for (auto it = copies.rbegin(); it != copies.rend(); ++it) pins.push_back(MakePin(*it));
  return pins;
}

absl::StatusOr<std::span<const std::byte>> BlockStore::MemoryBytes(const BlockCopy& copy,
                                                                   std::vector<std::byte>& buffer) const {
  const BlockPool& pool = copy.tier == Tier::kDevice ? *device_ : *host_;
  const BlockId block(static_cast<uint32_t>(copy.slot));
  if (pool.memory_kind() == MemoryKind::kHost) return pool.bytes(block);
  buffer.resize(layouts_.block_bytes(copy.tier));
  KVMESH_RETURN_IF_ERROR(pool.Read(block, buffer));
  return std::span<const std::byte>(buffer);
}

std::span<const std::byte> BlockStore::BytesInPlace(const BlockPin& pin) const {
  if (pin.tier() == Tier::kDisk || !layouts_.Same(pin.tier(), Tier::kDevice)) return {};
  if (pin.tier() == Tier::kDevice && device_->memory_kind() != MemoryKind::kHost) return {};
  std::vector<std::byte> unused;
  return *MemoryBytes(*pin.copy_, unused);
}

absl::StatusOr<BlockHeader> BlockStore::Read(const BlockPin& pin, std::span<std::byte> out) {
  absl::StatusOr<BlockHeader> read = pin.header();
  std::vector<std::byte> buffer;
  if (pin.tier() == Tier::kDisk) {
    const bool as_it_is = layouts_.Same(Tier::kDisk, Tier::kDevice);
    if (!as_it_is) buffer.resize(layouts_.block_bytes(Tier::kDisk));
    DiskTier::ReadRequest request{DiskSlot(pin.copy_->slot), pin.header(), as_it_is ? out : buffer, absl::OkStatus()};
    disk_->Read({&request, 1});
    if (!request.status.ok()) {
      read = request.status;
    } else if (!as_it_is) {
      read = layouts_.Convert(pin.header(), Tier::kDisk, buffer, Tier::kDevice, out);
    }
  } else {
    const absl::StatusOr<std::span<const std::byte>> bytes = MemoryBytes(*pin.copy_, buffer);
    if (!bytes.ok()) return bytes.status();
    read = layouts_.Move(pin.header(), pin.tier(), *bytes, Tier::kDevice, out);
  }
  if (!read.ok()) {
    MutexLock lock(mu_);
    Lose(pin.copy_, absl::IsDataLoss(read.status()) ? MissReason::kCorrupt : MissReason::kIoError);
  }
  return read;
}

uint64_t BlockStore::EraseIdentity(const RootKey& root) {
  size_t erased;
  {
    MutexLock lock(mu_);
    const size_t before = map_.size();
    if (BlockNode* node = map_.FindRoot(root)) map_.Erase(node);
    erased = before - map_.size();
  }
  FinishErases();
  return erased;
}

void BlockStore::FinishErases() {
  if (disk_ != nullptr) disk_->FinishErases();
}

BlockStore::Cut BlockStore::TakeCut() const {
  MutexLock lock(mu_);
  Cut cut;
  cut.sequence = events_.last();
  cut.blocks.reserve(map_.size());
  map_.ForEachParentsFirst([&cut](const BlockNode& node) {
    if (node.group > 0) return;
    CutBlock block{node.root, node.parent_key, node.key, node.index, {}};
    for (const BlockSetKind set : kAllSets) {
      const BlockCopy* copy = node.CopyFor(set);
      if (copy != nullptr) block.lossy_formats[static_cast<size_t>(set)] = copy->header.lossy_formats;
    }
    cut.blocks.push_back(block);
  });
  for (const BlockSetKind set : kAllSets) cut.digests[static_cast<size_t>(set)] = map_.digest(set);
  if (boundaries_ != nullptr) cut.boundaries = boundaries_->All();
  return cut;
}

void BlockStore::AppendDigests() {
  MutexLock lock(mu_);
  for (const BlockSetKind set : kAllSets) {
    events_.Append({.kind = StoreEvent::Kind::kDigest, .set = set, .digest = map_.digest(set)});
  }
}

BlockStore::Books BlockStore::GetBooks() const {
  Books books;
  books.tiers[0] = {device_->capacity(), device_->used()};
  if (host_ != nullptr) books.tiers[1] = {host_->capacity(), host_->used()};
  if (disk_ != nullptr) {
    const DiskTier::Usage usage = disk_->usage();
    books.tiers[2] = {usage.capacity_blocks, usage.used_blocks};
    books.disk_writable = !usage.read_only;
    books.disk_errors = usage.io_errors;
  }
  MutexLock lock(mu_);
  for (const BlockSetKind set : kAllSets) books.digests[static_cast<size_t>(set)] = map_.digest(set);
  books.pinned_blocks = map_.pinned(Tier::kDevice);
  books.read_pins = map_.pinned(Tier::kHost) + map_.pinned(Tier::kDisk);
  books.private_blocks = private_blocks_;
  books.evictions = evictions_;
  books.misses = misses_;
  books.promoted_bytes = promoted_bytes_;
  books.demoted_bytes = demoted_bytes_;
  books.lossy_promotions = lossy_promotions_;
  books.lossy_demotions = lossy_demotions_;
  books.conversions = layouts_.books();
  return books;
}

}  // namespace kvmesh
