// Disk I/O as the slab tier needs it. Two engines implement it: io_uring, and a few threads where the kernel refuses
// io_uring. Tests stand in for it to inject short writes, errors and torn writes.
#ifndef KVMESH_KVSTORE_TIERS_DISK_FILE_IO_H_
#define KVMESH_KVSTORE_TIERS_DISK_FILE_IO_H_

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"

namespace kvmesh {

// Unit of alignment of every offset, length and address that reaches a FileIo: direct I/O works with it on all common
// devices.
inline constexpr uint64_t kDiskPageBytes = 4096;

// One read into up to three buffers.
struct ReadOp {
  int fd = -1;
  uint64_t offset = 0;
  std::array<iovec, 3> parts{};
  size_t part_count = 0;
  int64_t result = 0;  // bytes read, fewer than asked at the end of the file or by chance; or -errno
};

// Thread safe. Calls block until done; buffers are the callers' until then. No call reports through errno.
class FileIo {
 public:
  virtual ~FileIo() = default;

  // Writes `parts`, one after another, at `offset`. Bytes written, possibly fewer than asked, or -errno.
  virtual int64_t Write(int fd, uint64_t offset, std::span<const iovec> parts) = 0;

  // Runs all reads in parallel. Calls done(i) once for each op when ops[i].result is set, from any thread, for several
  // ops at once, before it returns.
  virtual void Read(std::span<ReadOp> ops, absl::FunctionRef<void(size_t)> done) = 0;

  // Reserves file space and extends the file over it. 0 or -errno.
  virtual int Allocate(int fd, uint64_t offset, uint64_t bytes) = 0;

  // Bytes that an unprivileged process may still use on the file system of `path`, or -errno.
  virtual int64_t FreeBytes(const std::string& path) = 0;
};

// Null when the kernel refuses io_uring.
std::unique_ptr<FileIo> NewUringFileIo();
// Reads with `threads` threads.
std::unique_ptr<FileIo> NewThreadFileIo(size_t threads);
// The better of the two that works here.
std::unique_ptr<FileIo> NewFileIo();

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_DISK_FILE_IO_H_
