#include "kvstore/tiers/disk/slab_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace kvmesh {
namespace {

constexpr char kSlabPrefix[] = "slab-";
constexpr uint64_t kMaxSlabs = 1'000'000;
constexpr size_t kIdleBuffers = 16;
constexpr size_t kMaxReadsAtOnce = 64;
constexpr uint64_t kMaxReadBytesAtOnce = uint64_t{64} << 20;
constexpr int kReadPasses = 4;
constexpr int kMaxStuckWrites = 8;

bool PageAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kDiskPageBytes == 0; }

// Numbers of the slab files in `directory`; nullopt when it cannot be listed.
std::optional<std::vector<uint64_t>> ListSlabs(const std::string& directory) {
  std::vector<uint64_t> out;
  std::error_code ec;
  std::filesystem::directory_iterator it(directory, ec);
  for (; !ec && it != std::filesystem::directory_iterator(); it.increment(ec)) {
    const std::string file = it->path().filename().string();
    absl::string_view name = file;
    uint64_t index;
    if (absl::ConsumePrefix(&name, kSlabPrefix) && absl::SimpleAtoi(name, &index) && index < kMaxSlabs) {
      out.push_back(index);
    }
  }
  if (ec) return std::nullopt;
  return out;
}

// The iovecs of a slot: header page, whole pages of `payload`, and the page that holds the rest of it. `edges` has two
// pages. Fewer than three parts when the payload has no whole page or no rest.
size_t SlotParts(std::byte* edges, std::byte* payload, uint64_t block_bytes, std::array<iovec, 3>& parts) {
  const uint64_t whole = block_bytes / kDiskPageBytes * kDiskPageBytes;
  size_t n = 0;
  parts[n++] = {edges, kDiskPageBytes};
  if (whole > 0) parts[n++] = {payload, whole};
  if (whole < block_bytes) parts[n++] = {edges + kDiskPageBytes, kDiskPageBytes};
  return n;
}

// `parts` without their first `skip` bytes.
std::vector<iovec> Advance(std::span<const iovec> parts, uint64_t skip) {
  std::vector<iovec> out;
  for (iovec part : parts) {
    const uint64_t drop = std::min<uint64_t>(skip, part.iov_len);
    skip -= drop;
    part.iov_base = static_cast<std::byte*>(part.iov_base) + drop;
    part.iov_len -= drop;
    if (part.iov_len > 0) out.push_back(part);
  }
  return out;
}

// Failure only leaves bytes that nothing uses.
void TryTruncate(int fd, uint64_t size) {
  const int rc = ::ftruncate(fd, static_cast<off_t>(size));
  static_cast<void>(rc);
}

// Errors by which the kernel says that it cannot do direct I/O with this memory.
bool RefusesMemory(int64_t result) { return result == -EFAULT || result == -EINVAL; }

}  // namespace

SlabFiles::SlabFiles(FileIo& io, std::string directory, const DiskGeometry& geometry, uint64_t max_slots)
    : io_(io),
      directory_(std::move(directory)),
      block_bytes_(geometry.block_bytes),
      slot_bytes_(SlotBytes(geometry.block_bytes)),
      slots_per_slab_(geometry.slots_per_slab),
      max_slots_(max_slots),
      edges_(2 * kDiskPageBytes, kMaxReadsAtOnce),
      slots_(slot_bytes_, kIdleBuffers) {}

std::string SlabFiles::SlabPath(uint64_t index) const {
  return absl::StrFormat("%s/%s%06d", directory_, kSlabPrefix, index);
}

uint64_t SlabFiles::SlabLimit(uint64_t index) const {
  const uint64_t base = index * slots_per_slab_;
  return base >= max_slots_ ? 0 : std::min(slots_per_slab_, max_slots_ - base);
}

absl::StatusOr<UniqueFd> SlabFiles::OpenSlab(uint64_t index) const {
  const std::string path = SlabPath(index);
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC;
  int fd = ::open(path.c_str(), kFlags | O_DIRECT, 0600);
  if (fd < 0 && errno == EINVAL) fd = ::open(path.c_str(), kFlags, 0600);
  if (fd < 0) return ErrnoStatus(errno, path);
  return UniqueFd(fd);
}

absl::StatusOr<std::unique_ptr<SlabFiles>> SlabFiles::Open(FileIo& io, const std::string& directory,
                                                           const DiskGeometry& geometry, uint64_t max_slots) {
  auto files = std::unique_ptr<SlabFiles>(new SlabFiles(io, directory, geometry, max_slots));
  const std::optional<std::vector<uint64_t>> found = ListSlabs(directory);
  if (!found) return absl::UnavailableError(absl::StrCat("cannot list ", directory));
  WriterLock lock(files->mu_);
  for (const uint64_t index : *found) {
    const uint64_t limit = files->SlabLimit(index);
    if (limit == 0) {
      ::unlink(files->SlabPath(index).c_str());
      continue;
    }
    absl::StatusOr<UniqueFd> fd = files->OpenSlab(index);
    if (!fd.ok()) return fd.status();
    struct stat st;
    if (::fstat(fd->get(), &st) != 0) return ErrnoStatus(errno, files->SlabPath(index));
    const uint64_t slots = std::min<uint64_t>(static_cast<uint64_t>(st.st_size) / files->slot_bytes_, limit);
    // Cuts a partial slot, and slots beyond the limit.
    TryTruncate(fd->get(), slots * files->slot_bytes_);
    if (files->slabs_.size() <= index) files->slabs_.resize(index + 1);
    files->slabs_[index].fd = *std::move(fd);
    files->slabs_[index].slots = slots;
  }
  return files;
}

absl::Status SlabFiles::Remove(const std::string& directory) {
  const std::optional<std::vector<uint64_t>> found = ListSlabs(directory);
  if (!found) return absl::UnavailableError(absl::StrCat("cannot list ", directory));
  for (const uint64_t index : *found) {
    const std::string path = absl::StrFormat("%s/%s%06d", directory, kSlabPrefix, index);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, path);
  }
  return absl::OkStatus();
}

std::vector<SlotRange> SlabFiles::Present() const {
  ReaderLock lock(mu_);
  std::vector<SlotRange> out;
  for (uint64_t i = 0; i < slabs_.size(); ++i) {
    if (slabs_[i].slots > 0) out.push_back({i * slots_per_slab_, slabs_[i].slots});
  }
  return out;
}

std::optional<SlabFiles::Place> SlabFiles::Locate(DiskSlot slot) const {
  ReaderLock lock(mu_);
  const uint64_t index = slot.value() / slots_per_slab_;
  const uint64_t within = slot.value() % slots_per_slab_;
  if (index >= slabs_.size() || within >= slabs_[index].slots) return std::nullopt;
  return Place{slabs_[index].fd.get(), within * slot_bytes_};
}

absl::Status SlabFiles::Extend(int fd, uint64_t slots, uint64_t add) {
  const uint64_t old_size = slots * slot_bytes_;
  int rc = io_.Allocate(fd, old_size, add * slot_bytes_);
  if (rc == -EOPNOTSUPP) rc = ::ftruncate(fd, static_cast<off_t>(old_size + add * slot_bytes_)) == 0 ? 0 : -errno;
  if (rc == 0) return absl::OkStatus();
  // A failed allocation may have kept a part of the space.
  TryTruncate(fd, old_size);
  return ErrnoStatus(-rc, absl::StrCat("growing a slab file in ", directory_));
}

absl::StatusOr<SlotRange> SlabFiles::Grow(uint64_t want) {
  uint64_t index = 0;
  uint64_t slots = 0;
  int fd = -1;
  {
    WriterLock lock(mu_);
    while (index < slabs_.size() && slabs_[index].slots >= SlabLimit(index)) ++index;
    if (index >= kMaxSlabs || SlabLimit(index) == 0) return absl::ResourceExhaustedError("byte cap: no further slot");
    if (index >= slabs_.size()) slabs_.resize(index + 1);
    if (!slabs_[index].fd.valid()) {
      absl::StatusOr<UniqueFd> opened = OpenSlab(index);
      if (!opened.ok()) return opened.status();
      slabs_[index].fd = *std::move(opened);
    }
    slots = slabs_[index].slots;
    fd = slabs_[index].fd.get();
  }
  // Only Grow changes `slabs_`, so that what was found stays true without the lock.
  uint64_t add = std::clamp<uint64_t>(want, 1, SlabLimit(index) - slots);
  absl::Status extended = Extend(fd, slots, add);
  if (absl::IsResourceExhausted(extended) && add > 1) {
    add = 1;
    extended = Extend(fd, slots, add);
  }
  if (!extended.ok()) return extended;
  WriterLock lock(mu_);
  slabs_[index].slots = slots + add;
  return SlotRange{index * slots_per_slab_ + slots, add};
}

int SlabFiles::WriteAll(const Place& place, std::span<const iovec> parts) {
  uint64_t done = 0;
  int stuck = 0;
  while (done < slot_bytes_) {
    const std::vector<iovec> rest = Advance(parts, done);
    const int64_t n = io_.Write(place.fd, place.offset + done, rest);
    if (n < 0 && n != -EAGAIN) return static_cast<int>(n);
    // Direct I/O can only go on from a whole page.
    const uint64_t progress = n < 0 ? 0 : static_cast<uint64_t>(n) / kDiskPageBytes * kDiskPageBytes;
    done += progress;
    stuck = progress == 0 ? stuck + 1 : 0;
    if (stuck > kMaxStuckWrites) return -EIO;
  }
  return 0;
}

absl::Status SlabFiles::Write(DiskSlot slot, const EncodedHeader& header, std::span<const std::byte> payload) {
  const std::optional<Place> place = Locate(slot);
  if (!place) return absl::UnavailableError(absl::StrCat("slot ", slot.value(), " is not present"));
  const AlignedBuffer edges = edges_.Take();
  std::memset(edges.data(), 0, 2 * kDiskPageBytes);
  std::memcpy(edges.data(), header.data(), header.size());
  const uint64_t rest = block_bytes_ % kDiskPageBytes;
  std::memcpy(edges.data() + kDiskPageBytes, payload.data() + (block_bytes_ - rest), rest);

  std::array<iovec, 3> parts;
  int rc = -EFAULT;
  if (PageAligned(payload.data())) {
    // A write only reads the memory; iovec has no const form.
    auto* source = const_cast<std::byte*>(payload.data());
    rc = WriteAll(*place, std::span(parts.data(), SlotParts(edges.data(), source, block_bytes_, parts)));
  }
  if (RefusesMemory(rc)) {
    const AlignedBuffer copy = slots_.Take();
    std::memcpy(copy.data(), payload.data(), block_bytes_);
    rc = WriteAll(*place, std::span(parts.data(), SlotParts(edges.data(), copy.data(), block_bytes_, parts)));
  }
  if (rc != 0) return ErrnoStatus(-rc, absl::StrCat("writing slot ", slot.value(), " in ", directory_));
  return absl::OkStatus();
}

void SlabFiles::Read(std::span<SlotRead> reads, ReadyFn ready) {
  const size_t window = std::clamp<size_t>(kMaxReadBytesAtOnce / slot_bytes_, 4, kMaxReadsAtOnce);
  for (size_t first = 0; first < reads.size(); first += window) {
    const std::span<SlotRead> part = reads.subspan(first, std::min(window, reads.size() - first));
    std::vector<size_t> todo(part.size());
    for (size_t i = 0; i < part.size(); ++i) todo[i] = i;
    // Later passes take up short reads and memory that direct I/O cannot use.
    for (int pass = 0; pass < kReadPasses && !todo.empty(); ++pass) ReadPass(part, first, todo, pass > 0, ready);
  }
}

void SlabFiles::ReadPass(std::span<SlotRead> reads, size_t first_index, std::vector<size_t>& todo, bool bounce,
                         ReadyFn ready) {
  struct Buffers {
    size_t index = 0;
    AlignedBuffer edges;
    AlignedBuffer slot;  // only when bounced
    bool again = false;
  };
  std::vector<Buffers> buffers;
  std::vector<ReadOp> ops;
  buffers.reserve(todo.size());
  ops.reserve(todo.size());
  for (const size_t i : todo) {
    const std::optional<Place> place = Locate(reads[i].slot);
    if (!place) {
      reads[i].status = absl::DataLossError(absl::StrCat("slot ", reads[i].slot.value(), " is not present"));
      continue;
    }
    Buffers buffer{i, edges_.Take(), {}, false};
    std::byte* target = reads[i].payload.data();
    if (bounce || !PageAligned(target)) {
      buffer.slot = slots_.Take();
      target = buffer.slot.data();
    }
    ReadOp op;
    op.fd = place->fd;
    op.offset = place->offset;
    op.part_count = SlotParts(buffer.edges.data(), target, block_bytes_, op.parts);
    buffers.push_back(std::move(buffer));
    ops.push_back(op);
  }

  io_.Read(ops, [&](size_t n) {
    Buffers& buffer = buffers[n];
    SlotRead& read = reads[buffer.index];
    const int64_t result = ops[n].result;
    if (result == static_cast<int64_t>(slot_bytes_)) {
      const uint64_t rest = block_bytes_ % kDiskPageBytes;
      if (buffer.slot.data() != nullptr) std::memcpy(read.payload.data(), buffer.slot.data(), block_bytes_ - rest);
      std::memcpy(read.payload.data() + (block_bytes_ - rest), buffer.edges.data() + kDiskPageBytes, rest);
      read.status = absl::OkStatus();
      ready(first_index + buffer.index,
            std::span<const std::byte, kBlockHeaderBytes>(buffer.edges.data(), kBlockHeaderBytes));
    } else if (result >= 0) {
      buffer.again = true;
      read.status = absl::DataLossError(absl::StrCat("slot ", read.slot.value(), " ends early"));
    } else {
      buffer.again = result == -EINTR || result == -EAGAIN || (!bounce && RefusesMemory(result));
      read.status = ErrnoStatus(static_cast<int>(-result), absl::StrCat("reading slot ", read.slot.value()));
      if (absl::IsResourceExhausted(read.status)) read.status = absl::UnavailableError(read.status.message());
    }
  });

  todo.clear();
  for (const Buffers& buffer : buffers) {
    if (buffer.again) todo.push_back(buffer.index);
  }
}

absl::StatusOr<EncodedHeader> SlabFiles::ReadHeader(DiskSlot slot) {
  const std::optional<Place> place = Locate(slot);
  if (!place) return absl::DataLossError(absl::StrCat("slot ", slot.value(), " is not present"));
  const AlignedBuffer edges = edges_.Take();
  ReadOp op;
  op.fd = place->fd;
  op.offset = place->offset;
  op.parts[0] = {edges.data(), kDiskPageBytes};
  op.part_count = 1;
  io_.Read(std::span(&op, 1), [](size_t) {});
  if (op.result < 0) return absl::UnavailableError(absl::StrCat("reading slot ", slot.value(), ": errno ", -op.result));
  if (op.result < static_cast<int64_t>(kBlockHeaderBytes)) {
    return absl::DataLossError(absl::StrCat("slot ", slot.value(), " ends early"));
  }
  EncodedHeader out;
  std::memcpy(out.data(), edges.data(), out.size());
  return out;
}

}  // namespace kvmesh
