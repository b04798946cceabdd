#include "kvstore/tiers/disk/slab_disk_tier.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

constexpr absl::Duration kRetryInterval = absl::Seconds(1);
// Slab files grow by this much at a time, so that a nearly full file system is still used to its end.
constexpr uint64_t kGrowBytes = uint64_t{16} << 20;

// True once per interval, also after the clock was set back.
bool Due(absl::Time now, absl::Time& last) {
  if (now >= last && now - last < kRetryInterval) return false;
  last = now;
  return true;
}

}  // namespace

SlabDiskTier::SlabDiskTier(const SlabDiskOptions& options, SlabDiskEnvironment environment, DiskDirectory directory)
    : options_(options),
      max_slots_(options.byte_cap == 0 ? std::numeric_limits<uint64_t>::max()
                                       : options.byte_cap / SlotBytes(options.block_bytes)),
      io_(environment.io != nullptr ? std::move(environment.io) : NewFileIo()),
      clock_(*environment.clock),
      directory_(std::move(directory)),
      ballast_(*io_, directory_.ballast_path(), options.catalog_reserve_bytes) {}

SlabDiskTier::~SlabDiskTier() { FinishErases(); }

absl::StatusOr<DiskSlot> SlabDiskTier::Write(const BlockHeader& header, std::span<const std::byte> payload) {
  if (payload.size() != options_.block_bytes)
    return absl::InvalidArgumentError("payload: not of the tier's block size");
  if (header.payload_bytes != payload.size())
    return absl::InvalidArgumentError("header.payload_bytes: not the payload's");
  if (header.layout != options_.layout) return absl::InvalidArgumentError("header.layout: not the tier's");
  KVMESH_RETURN_IF_ERROR(EnsureWritable());
  FinishErases();
  if (read_only_.load(std::memory_order_acquire)) {
    MutexLock lock(health_mu_);
    return ReadOnlyError();
  }
  absl::StatusOr<DiskSlot> slot = TakeSlot();
  if (!slot.ok()) return slot.status();

  EncodedHeader encoded;
  EncodeBlockHeader(header, encoded);
  const absl::Status written = slabs_->Write(*slot, encoded, payload);
  if (!written.ok()) {
    const bool full = absl::IsResourceExhausted(written);
    {
      MutexLock lock(mu_);
      if (full) {
        table_.AbortWrite(*slot);
      } else {
        table_.MarkBad(*slot);
      }
    }
    if (!full) EnterReadOnly(Fault::kSlab, written);
    return written;
  }
  const absl::Status cataloged = catalog_->Put(encoded, FoundUnder(header), *slot);
  if (!cataloged.ok()) {
    EnterReadOnly(Fault::kCatalog, cataloged);
    MutexLock lock(mu_);
    table_.AbortWrite(*slot);
    return absl::UnavailableError(cataloged.message());
  }
  MutexLock lock(mu_);
  table_.FinishWrite(*slot, FoundUnder(header));
  return *slot;
}

void SlabDiskTier::Read(std::span<ReadRequest> requests) {
  std::vector<SlotRead> reads;
  std::vector<size_t> index;
  reads.reserve(requests.size());
  index.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    ReadRequest& request = requests[i];
    if (request.out.size() != options_.block_bytes) {
      request.status = absl::InvalidArgumentError("out: not of the tier's block size");
      continue;
    }
    {
      MutexLock lock(mu_);
      if (!table_.IsUsed(request.slot)) {
        request.status = absl::DataLossError(absl::StrCat("slot ", request.slot.value(), " holds no block"));
        continue;
      }
    }
    reads.push_back({request.slot, request.out, absl::OkStatus()});
    index.push_back(i);
  }
  slabs_->Read(reads, [&](size_t n, std::span<const std::byte, kBlockHeaderBytes> header) {
    reads[n].status = CheckRead(requests[index[n]], header);
  });
  for (size_t n = 0; n < reads.size(); ++n) {
    if (absl::IsUnavailable(reads[n].status)) CountIoError();
    requests[index[n]].status = std::move(reads[n].status);
  }
}

absl::Status SlabDiskTier::CheckRead(const ReadRequest& request,
                                     std::span<const std::byte, kBlockHeaderBytes> header) const {
  EncodedHeader expected;
  EncodeBlockHeader(request.expected, expected);
  if (!std::equal(expected.begin(), expected.end(), header.begin())) {
    return absl::DataLossError(absl::StrCat("slot ", request.slot.value(), " holds another header"));
  }
  return VerifyBlock(request.expected, request.out);
}

void SlabDiskTier::Erase(DiskSlot slot) {
  MutexLock lock(mu_);
  if (table_.BeginErase(slot)) pending_erases_.push_back(slot);
}

void SlabDiskTier::FinishErases() {
  std::vector<DiskSlot> pending;
  {
    MutexLock lock(mu_);
    pending.swap(pending_erases_);
  }
  for (size_t i = 0; i < pending.size(); ++i) {
    if (CompleteErase(pending[i])) continue;
    MutexLock lock(mu_);
    pending_erases_.insert(pending_erases_.end(), pending.begin() + static_cast<ptrdiff_t>(i), pending.end());
    return;
  }
}

bool SlabDiskTier::CompleteErase(DiskSlot slot) {
  if (!catalog_->healthy()) return false;
  BlockKey key;
  {
    MutexLock lock(mu_);
    key = table_.KeyOf(slot);
  }
  const absl::Status removed = catalog_->Remove(key, slot);
  if (!removed.ok()) {
    EnterReadOnly(Fault::kCatalog, removed);
    return false;
  }
  MutexLock lock(mu_);
  table_.FinishErase(slot);
  return true;
}

std::vector<RecoveredBlock> SlabDiskTier::TakeRecovered() {
  MutexLock lock(mu_);
  return std::exchange(recovered_, {});
}

DiskTier::Usage SlabDiskTier::usage() const {
  Usage out;
  uint64_t room = 0;
  {
    MutexLock lock(mu_);
    out.used_blocks = table_.used() - pending_erases_.size();
    room = table_.free() + pending_erases_.size();
  }
  out.capacity_blocks = max_slots_;
  if (options_.byte_cap == 0) {
    const int64_t free_bytes = io_->FreeBytes(directory_.path());
    const uint64_t above_floor = static_cast<uint64_t>(std::max<int64_t>(free_bytes, 0));
    if (above_floor > options_.free_space_floor_bytes) {
      room += (above_floor - options_.free_space_floor_bytes) / SlotBytes(options_.block_bytes);
    }
    out.capacity_blocks = out.used_blocks + room;
  }
  out.read_only = read_only_.load(std::memory_order_acquire) || !catalog_->healthy();
  out.io_errors = io_errors_.load(std::memory_order_relaxed);
  out.recovery_dropped = recovery_dropped_.load(std::memory_order_relaxed);
  return out;
}

absl::Status SlabDiskTier::health() const {
  MutexLock lock(health_mu_);
  return fault_ == Fault::kNone ? absl::OkStatus() : cause_;
}

void SlabDiskTier::EnterReadOnly(Fault fault, const absl::Status& cause) {
  CountIoError();
  MutexLock lock(health_mu_);
  ++faults_;
  // A catalog's error takes more to heal than a slab's, and stays the cause.
  if (fault_ != Fault::kCatalog) {
    fault_ = fault;
    cause_ = cause;
  }
  // Slabs heal by waiting; a catalog may heal at once.
  if (fault_ == Fault::kSlab) last_heal_ = clock_.Now();
  read_only_.store(true, std::memory_order_release);
}

absl::Status SlabDiskTier::EnsureWritable() {
  if (!read_only_.load(std::memory_order_acquire)) {
    if (catalog_->healthy()) return absl::OkStatus();
    EnterReadOnly(Fault::kCatalog, absl::UnavailableError("catalog: an error in background work"));
  }
  Fault fault;
  uint64_t faults;
  {
    MutexLock lock(health_mu_);
    if (fault_ == Fault::kNone) return absl::OkStatus();
    if (healing_ || !Due(clock_.Now(), last_heal_)) return ReadOnlyError();
    healing_ = true;
    fault = fault_;
    faults = faults_;
  }
  const absl::Status healed = Heal(fault);
  if (!healed.ok()) CountIoError();
  MutexLock lock(health_mu_);
  healing_ = false;
  if (!healed.ok()) {
    fault_ = Fault::kCatalog;
    cause_ = healed;
  }
  // A fault that came meanwhile may be a new one.
  if (!healed.ok() || faults_ != faults) return ReadOnlyError();
  fault_ = Fault::kNone;
  read_only_.store(false, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status SlabDiskTier::ReadOnlyError() const {
  return absl::UnavailableError(absl::StrCat("read-only: ", cause_.message()));
}

absl::Status SlabDiskTier::Heal(Fault fault) {
  if (fault == Fault::kCatalog || !catalog_->healthy()) {
    {
      MutexLock lock(space_mu_);
      ballast_.Release();
      last_ballast_try_ = clock_.Now();
    }
    KVMESH_RETURN_IF_ERROR(catalog_->Heal());
  }
  FinishErases();
  return absl::OkStatus();
}

absl::StatusOr<DiskSlot> SlabDiskTier::TakeSlot() {
  {
    MutexLock lock(mu_);
    if (std::optional<DiskSlot> slot = table_.Take()) return *slot;
  }
  MutexLock space(space_mu_);
  {
    MutexLock lock(mu_);
    if (std::optional<DiskSlot> slot = table_.Take()) return *slot;
  }
  KVMESH_RETURN_IF_ERROR(GrowSlabs());
  MutexLock lock(mu_);
  if (std::optional<DiskSlot> slot = table_.Take()) return *slot;
  return absl::ResourceExhaustedError("no free slot");
}

absl::Status SlabDiskTier::GrowSlabs() {
  RestoreBallast();
  if (!ballast_.held()) return absl::ResourceExhaustedError("catalog reserve: the file system has no room for it");
  const uint64_t slot_bytes = SlotBytes(options_.block_bytes);
  const int64_t free_bytes = io_->FreeBytes(directory_.path());
  if (free_bytes < 0) return ErrnoStatus(static_cast<int>(-free_bytes), directory_.path());
  const auto available = static_cast<uint64_t>(free_bytes);
  if (available < options_.free_space_floor_bytes + slot_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("free-space floor: ", available, " bytes are free in ", directory_.path()));
  }
  const uint64_t under_floor = (available - options_.free_space_floor_bytes) / slot_bytes;
  const uint64_t want = std::clamp<uint64_t>(kGrowBytes / slot_bytes, 1, under_floor);
  const absl::StatusOr<SlotRange> grown = slabs_->Grow(want);
  if (!grown.ok()) {
    if (absl::IsUnavailable(grown.status())) EnterReadOnly(Fault::kSlab, grown.status());
    return grown.status();
  }
  MutexLock lock(mu_);
  table_.AddFree(grown->first, grown->count);
  return absl::OkStatus();
}

void SlabDiskTier::RestoreBallast() {
  if (ballast_.held() || !Due(clock_.Now(), last_ballast_try_)) return;
  // Twice the reserve, so that it is not taken from the catalog that just got it.
  const int64_t free_bytes = io_->FreeBytes(directory_.path());
  if (free_bytes < 0) return;
  if (static_cast<uint64_t>(free_bytes) < options_.free_space_floor_bytes + 2 * ballast_.bytes()) return;
  // A failure leaves it for the next time.
  ballast_.Take().IgnoreError();
}

}  // namespace kvmesh
