#include "kvstore/tiers/disk/posix_file_io.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvmesh {

int64_t PosixFileIo::Write(int fd, uint64_t offset, std::span<const iovec> parts) {
  ssize_t n;
  do {
    n = ::pwritev(fd, parts.data(), static_cast<int>(parts.size()), static_cast<off_t>(offset));
  } while (n < 0 && errno == EINTR);
  return n < 0 ? -errno : n;
}

int PosixFileIo::Allocate(int fd, uint64_t offset, uint64_t bytes) {
  int rc;
  do {
    rc = ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (rc < 0 && errno == EINTR);
  return rc < 0 ? -errno : 0;
}

int64_t PosixFileIo::FreeBytes(const std::string& path) {
  struct statvfs fs;
  if (::statvfs(path.c_str(), &fs) != 0) return -errno;
  const auto bytes = static_cast<unsigned __int128>(fs.f_bavail) * fs.f_frsize;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  return bytes > static_cast<unsigned __int128>(kMax) ? kMax : static_cast<int64_t>(bytes);
}

void PosixFileIo::ReadOne(ReadOp& op) {
  ssize_t n;
  do {
    n = ::preadv(op.fd, op.parts.data(), static_cast<int>(op.part_count), static_cast<off_t>(op.offset));
  } while (n < 0 && errno == EINTR);
  op.result = n < 0 ? -errno : n;
}

absl::Status ErrnoStatus(int error, absl::string_view what) {
  std::string message = absl::StrCat(what, ": ", std::generic_category().message(error));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(message);
  return absl::UnavailableError(message);
}

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.Release();
  }
  return *this;
}

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

int UniqueFd::Release() { return std::exchange(fd_, -1); }

}  // namespace kvmesh
