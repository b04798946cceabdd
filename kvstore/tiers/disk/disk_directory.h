// The directory of a disk tier: who owns it, what its slots look like, and the ballast that keeps room for the catalog.
#ifndef KVMESH_KVSTORE_TIERS_DISK_DISK_DIRECTORY_H_
#define KVMESH_KVSTORE_TIERS_DISK_DISK_DIRECTORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "kvstore/base/status.h"
#include "kvstore/block/block_header.h"
#include "kvstore/tiers/disk/file_io.h"
#include "kvstore/tiers/disk/posix_file_io.h"

namespace kvmesh {

// What decides where a slot is and what fits into it.
struct DiskGeometry {
  LayoutFingerprint layout;
  LayoutFingerprint pool_layout;
  uint64_t block_bytes = 0;
  uint32_t slots_per_slab = 0;

  friend bool operator==(const DiskGeometry&, const DiskGeometry&) = default;
};

// A claim on a directory, held until destruction.
class DiskDirectory {
 public:
  // Creates the directory when absent and locks it. FAILED_PRECONDITION: another process (or another claim of this one)
  // holds it, or it belongs to another disk id. RESOURCE_EXHAUSTED: no space. UNAVAILABLE: any other I/O error.
  static absl::StatusOr<DiskDirectory> Claim(const std::string& path, const std::string& disk_id);

  const std::string& path() const { return path_; }
  std::string catalog_path() const { return path_ + "/catalog"; }
  std::string ballast_path() const { return path_ + "/ballast"; }

  // nullopt when the file is absent, unreadable or of another version.
  std::optional<DiskGeometry> ReadGeometry() const;
  // RESOURCE_EXHAUSTED, UNAVAILABLE.
  absl::Status WriteGeometry(const DiskGeometry& geometry) const;

 private:
  DiskDirectory(std::string path, UniqueFd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  UniqueFd lock_;
};

// A file whose only use is that its space can be given back. Not thread safe.
class Ballast {
 public:
  // `io` must outlive it. Keeps a file of the right size that is already there.
  Ballast(FileIo& io, std::string path, uint64_t bytes);

  bool held() const { return held_; }
  uint64_t bytes() const { return bytes_; }
  // Takes the space. RESOURCE_EXHAUSTED or UNAVAILABLE; nothing is held then.
  absl::Status Take();
  // Gives the space back.
  void Release();

 private:
  FileIo& io_;
  const std::string path_;
  const uint64_t bytes_;
  bool held_ = false;
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_DISK_DISK_DIRECTORY_H_
