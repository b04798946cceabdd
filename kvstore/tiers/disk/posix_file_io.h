// The calls that both engines share: writes, allocation and free space are plain system calls.
#ifndef KVMESH_KVSTORE_TIERS_DISK_POSIX_FILE_IO_H_
#define KVMESH_KVSTORE_TIERS_DISK_POSIX_FILE_IO_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kvstore/tiers/disk/file_io.h"

namespace kvmesh {

class PosixFileIo : public FileIo {
 public:
  int64_t Write(int fd, uint64_t offset, std::span<const iovec> parts) override;
  int Allocate(int fd, uint64_t offset, uint64_t bytes) override;
  int64_t FreeBytes(const std::string& path) override;

 protected:
  // Runs one read on this thread and sets its result.
  static void ReadOne(ReadOp& op);
};

// RESOURCE_EXHAUSTED for a full file system or quota, UNAVAILABLE for any other error; says `what` and the error.
absl::Status ErrnoStatus(int error, absl::string_view what);

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int Release();
  int fd_ = -1;
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_DISK_POSIX_FILE_IO_H_
