#include "kvstore/tiers/disk/file_io.h"

namespace kvmesh {
namespace {

constexpr size_t kFallbackThreads = 16;

}  // namespace

std::unique_ptr<FileIo> NewFileIo() {
  if (std::unique_ptr<FileIo> uring = NewUringFileIo()) return uring;
  return NewThreadFileIo(kFallbackThreads);
}

}  // namespace kvmesh
