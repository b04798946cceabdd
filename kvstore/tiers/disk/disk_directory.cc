#include "kvstore/tiers/disk/disk_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace kvmesh {
namespace {

constexpr char kGeometryVersion[] = "kvmesh-disk 1";
constexpr size_t kMaxSmallFileBytes = 4096;

// The whole of a small file; nullopt when it cannot be read.
std::optional<std::string> ReadSmallFile(int fd) {
  std::string out(kMaxSmallFileBytes, '\0');
  const ssize_t n = ::pread(fd, out.data(), out.size(), 0);
  if (n < 0) return std::nullopt;
  out.resize(static_cast<size_t>(n));
  return out;
}

// Replaces the file's content.
absl::Status WriteSmallFile(int fd, const std::string& content, const std::string& path) {
  if (::ftruncate(fd, 0) != 0) return ErrnoStatus(errno, path);
  const ssize_t n = ::pwrite(fd, content.data(), content.size(), 0);
  if (n != static_cast<ssize_t>(content.size())) return ErrnoStatus(n < 0 ? errno : ENOSPC, path);
  if (::fsync(fd) != 0) return ErrnoStatus(errno, path);
  return absl::OkStatus();
}

// The value of a line "name value"; empty when it is another line.
absl::string_view LineValue(absl::string_view line, absl::string_view name) {
  if (!absl::ConsumePrefix(&line, name) || !absl::ConsumePrefix(&line, " ")) return {};
  return line;
}

std::optional<LayoutFingerprint> LineFingerprint(absl::string_view line, absl::string_view name) {
  const absl::string_view hex = LineValue(line, name);
  if (hex.size() != 2 * LayoutFingerprint::kSize) return std::nullopt;
  return LayoutFingerprint::FromBytes(absl::HexStringToBytes(hex));
}

}  // namespace

absl::StatusOr<DiskDirectory> DiskDirectory::Claim(const std::string& path, const std::string& disk_id) {
  std::error_code ec;
  std::filesystem::create_directories(path, ec);
  if (ec) return ErrnoStatus(ec.value(), path);
  const std::string id_path = path + "/disk_id";
  UniqueFd lock(::open(id_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoStatus(errno, id_path);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, id_path);
    return absl::FailedPreconditionError(absl::StrCat("disk directory ", path, " is in use by another process"));
  }
  const std::optional<std::string> recorded = ReadSmallFile(lock.get());
  if (!recorded) return ErrnoStatus(errno, id_path);
  absl::string_view owner = *recorded;
  // Without its newline the file is what a kill left of a first start.
  if (absl::ConsumeSuffix(&owner, "\n")) {
    if (owner != disk_id) {
      return absl::FailedPreconditionError(
          absl::StrCat("disk directory ", path, " belongs to disk id '", owner, "', not '", disk_id, "'"));
    }
  } else {
    KVMESH_RETURN_IF_ERROR(WriteSmallFile(lock.get(), disk_id + "\n", id_path));
  }
  return DiskDirectory(path, std::move(lock));
}

std::optional<DiskGeometry> DiskDirectory::ReadGeometry() const {
  UniqueFd fd(::open((path_ + "/geometry").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return std::nullopt;
  const std::optional<std::string> content = ReadSmallFile(fd.get());
  if (!content) return std::nullopt;
  const std::vector<absl::string_view> lines = absl::StrSplit(*content, '\n');
  // The last line is empty; that of the pool is there when its layout is another.
  if ((lines.size() != 5 && lines.size() != 6) || lines[0] != kGeometryVersion) return std::nullopt;
  DiskGeometry out;
  const std::optional<LayoutFingerprint> layout = LineFingerprint(lines[1], "layout");
  const std::optional<LayoutFingerprint> pool = lines.size() == 6 ? LineFingerprint(lines[4], "pool") : layout;
  if (!layout || !pool) return std::nullopt;
  out.layout = *layout;
  out.pool_layout = *pool;
  if (!absl::SimpleAtoi(LineValue(lines[2], "block_bytes"), &out.block_bytes)) return std::nullopt;
  if (!absl::SimpleAtoi(LineValue(lines[3], "slots_per_slab"), &out.slots_per_slab)) return std::nullopt;
  return out;
}

absl::Status DiskDirectory::WriteGeometry(const DiskGeometry& geometry) const {
  const std::string path = path_ + "/geometry";
  const std::string staged = path + ".new";
  UniqueFd fd(::open(staged.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, staged);
  std::string content = absl::StrCat(kGeometryVersion, "\nlayout ", geometry.layout.ToHex(), "\nblock_bytes ",
                                     geometry.block_bytes, "\nslots_per_slab ", geometry.slots_per_slab, "\n");
  if (geometry.pool_layout != geometry.layout) absl::StrAppend(&content, "pool ", geometry.pool_layout.ToHex(), "\n");
  KVMESH_RETURN_IF_ERROR(WriteSmallFile(fd.get(), content, staged));
  if (::rename(staged.c_str(), path.c_str()) != 0) return ErrnoStatus(errno, path);
  return absl::OkStatus();
}

Ballast::Ballast(FileIo& io, std::string path, uint64_t bytes) : io_(io), path_(std::move(path)), bytes_(bytes) {
  struct stat st;
  held_ = bytes_ == 0;
  if (::stat(path_.c_str(), &st) != 0) return;
  const bool whole = static_cast<uint64_t>(st.st_size) == bytes_ && static_cast<uint64_t>(st.st_blocks) * 512 >= bytes_;
  if (bytes_ > 0 && whole) {
    held_ = true;
  } else {
    ::unlink(path_.c_str());
  }
}

absl::Status Ballast::Take() {
  if (held_) return absl::OkStatus();
  UniqueFd fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, path_);
  const int rc = io_.Allocate(fd.get(), 0, bytes_);
  if (rc != 0) {
    ::unlink(path_.c_str());
    // A file system that reserves no space has no use for a ballast.
    if (rc != -EOPNOTSUPP) return ErrnoStatus(-rc, path_);
  }
  held_ = true;
  return absl::OkStatus();
}

void Ballast::Release() {
  if (bytes_ == 0 || !held_) return;
  ::unlink(path_.c_str());
  held_ = false;
}

}  // namespace kvmesh
