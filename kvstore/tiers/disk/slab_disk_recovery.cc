// Opening a disk tier: what the catalog names is believed as far as it is consistent; bytes are checked by later reads.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kvstore/tiers/disk/slab_disk_tier.h"

namespace kvmesh {
namespace {

// An entry that names a usable slot of this tier.
struct Candidate {
  RecoveredBlock block;
  EncodedHeader encoded;
};

// nullopt: the entry does not make sense here.
std::optional<Candidate> ParseEntry(absl::string_view key, absl::string_view value, const SlabDiskOptions& options) {
  if (value.size() != kCatalogValueBytes) return std::nullopt;
  const EncodedHeader encoded = CatalogValueHeader(value);
  const absl::StatusOr<BlockHeader> header = DecodeBlockHeader(encoded);
  if (!header.ok()) return std::nullopt;
  if (FoundUnder(*header).view() != key) return std::nullopt;
  if (header->layout != options.layout || header->payload_bytes != options.block_bytes) return std::nullopt;
  return Candidate{{*header, CatalogValueSlot(value)}, encoded};
}

}  // namespace

absl::StatusOr<std::unique_ptr<SlabDiskTier>> SlabDiskTier::Open(const SlabDiskOptions& options,
                                                                 SlabDiskEnvironment environment) {
  KVMESH_RETURN_IF_ERROR(ValidateSlabDiskOptions(options));
  absl::StatusOr<DiskDirectory> directory = DiskDirectory::Claim(options.directory, options.disk_id);
  if (!directory.ok()) return directory.status();
  auto tier = std::unique_ptr<SlabDiskTier>(new SlabDiskTier(options, std::move(environment), *std::move(directory)));
  KVMESH_RETURN_IF_ERROR(tier->Start());
  return tier;
}

absl::Status SlabDiskTier::Start() {
  DiskGeometry geometry{options_.layout, options_.pool_layout.value_or(options_.layout), options_.block_bytes,
                        options_.slots_per_slab};
  const std::optional<DiskGeometry> recorded = directory_.ReadGeometry();
  const bool same = recorded && recorded->layout == geometry.layout && recorded->pool_layout == geometry.pool_layout &&
                    recorded->block_bytes == geometry.block_bytes && recorded->slots_per_slab > 0 &&
                    recorded->slots_per_slab <= kMaxSlotsPerSlab;
  if (same) geometry.slots_per_slab = recorded->slots_per_slab;

  absl::Status opened = OpenCatalog();
  if (absl::IsDataLoss(opened) || (opened.ok() && !same)) {
    KVMESH_RETURN_IF_ERROR(DropContents(geometry));
    opened = OpenCatalog();
  }
  if (absl::IsDataLoss(opened)) return absl::UnavailableError(opened.message());
  KVMESH_RETURN_IF_ERROR(opened);

  absl::StatusOr<std::unique_ptr<SlabFiles>> slabs = SlabFiles::Open(*io_, directory_.path(), geometry, max_slots_);
  if (!slabs.ok()) return slabs.status();
  slabs_ = *std::move(slabs);
  absl::Status recovered = Recover();
  if (absl::IsDataLoss(recovered)) {
    // A corrupt table shows only when it is read.
    slabs_ = nullptr;
    KVMESH_RETURN_IF_ERROR(DropContents(geometry));
    KVMESH_RETURN_IF_ERROR(OpenCatalog());
    slabs = SlabFiles::Open(*io_, directory_.path(), geometry, max_slots_);
    if (!slabs.ok()) return slabs.status();
    slabs_ = *std::move(slabs);
    recovered = Recover();
  }
  KVMESH_RETURN_IF_ERROR(recovered);
  MutexLock lock(space_mu_);
  const int64_t free_bytes = io_->FreeBytes(directory_.path());
  if (free_bytes >= 0 && static_cast<uint64_t>(free_bytes) >= options_.free_space_floor_bytes + ballast_.bytes()) {
    // Without it the slabs do not grow, and growing tries again.
    ballast_.Take().IgnoreError();
  }
  return absl::OkStatus();
}

absl::Status SlabDiskTier::OpenCatalog() {
  absl::StatusOr<std::unique_ptr<Catalog>> catalog = Catalog::Open(directory_.catalog_path());
  if (absl::IsResourceExhausted(catalog.status())) {
    MutexLock lock(space_mu_);
    ballast_.Release();
    catalog = Catalog::Open(directory_.catalog_path());
  }
  if (!catalog.ok()) return catalog.status();
  catalog_ = *std::move(catalog);
  return absl::OkStatus();
}

absl::Status SlabDiskTier::DropContents(const DiskGeometry& geometry) {
  uint64_t dropped = 0;
  bool counted = false;
  if (catalog_ != nullptr) {
    counted = catalog_->ForEach([&](absl::string_view, absl::string_view) { ++dropped; }).ok();
    catalog_ = nullptr;
  }
  if (!counted) {
    // An unreadable catalog does not say which slots were in use: all of them count.
    const absl::StatusOr<std::unique_ptr<SlabFiles>> slabs =
        SlabFiles::Open(*io_, directory_.path(), geometry, max_slots_);
    dropped = 0;
    if (slabs.ok()) {
      for (const SlotRange& range : (*slabs)->Present()) dropped += range.count;
    }
  }
  recovery_dropped_.fetch_add(dropped, std::memory_order_relaxed);
  // The geometry comes last: after a kill in between, the next open drops what is left.
  KVMESH_RETURN_IF_ERROR(Catalog::Destroy(directory_.catalog_path()));
  KVMESH_RETURN_IF_ERROR(SlabFiles::Remove(directory_.path()));
  return directory_.WriteGeometry(geometry);
}

absl::Status SlabDiskTier::Recover() {
  // The slot decides between several entries that name it.
  std::vector<Candidate> candidates;
  std::vector<std::string> rejected;
  KVMESH_RETURN_IF_ERROR(catalog_->ForEach([&](absl::string_view key, absl::string_view value) {
    if (std::optional<Candidate> candidate = ParseEntry(key, value, options_)) {
      candidates.push_back(*std::move(candidate));
    } else {
      rejected.emplace_back(key);
    }
  }));
  absl::flat_hash_map<uint64_t, uint32_t> claims;
  claims.reserve(candidates.size());
  for (const Candidate& candidate : candidates) ++claims[candidate.block.slot.value()];

  MutexLock lock(mu_);
  for (const SlotRange& range : slabs_->Present()) table_.AddFree(range.first, range.count);
  for (Candidate& candidate : candidates) {
    const DiskSlot slot = candidate.block.slot;
    bool good = true;
    if (claims[slot.value()] > 1) {
      const absl::StatusOr<EncodedHeader> header = slabs_->ReadHeader(slot);
      good = header.ok() && *header == candidate.encoded;
    }
    if (good && table_.Claim(slot, FoundUnder(candidate.block.header))) {
      recovered_.push_back(std::move(candidate.block));
    } else {
      rejected.push_back(FoundUnder(candidate.block.header).ToString());
    }
  }
  table_.SortFree();
  recovery_dropped_.fetch_add(rejected.size(), std::memory_order_relaxed);
  if (rejected.empty()) return absl::OkStatus();
  // A catalog that cannot be written now is found so by the first write, too.
  catalog_->RemoveKeys(rejected).IgnoreError();
  return absl::OkStatus();
}

}  // namespace kvmesh
