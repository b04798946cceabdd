// What the disk tier's tests share: private directories, seeded blocks, and stand-ins for its I/O.
#ifndef KVMESH_TESTS_UNIT_KVSTORE_TIERS_DISK_DISK_TEST_UTIL_H_
#define KVMESH_TESTS_UNIT_KVSTORE_TIERS_DISK_DISK_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/tiers/disk/posix_file_io.h"
#include "kvstore/tiers/disk/slab_disk_tier.h"

namespace kvmesh {

// A directory of its own, removed at the end. With `tmpfs_bytes`, a file system of that size; only root can mount it.
class TestDir {
 public:
  TestDir() {
    const char* base = ::getenv("TEST_TMPDIR");
    std::string name = std::string(base != nullptr ? base : "/tmp") + "/kvmesh_disk_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TestDir() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  bool MountTmpfs(uint64_t bytes) {
    if (::geteuid() != 0) return false;
    mounted_ = ::mount("none", path_.c_str(), "tmpfs", 0, ("size=" + std::to_string(bytes)).c_str()) == 0;
    return mounted_;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool mounted_ = false;
};

inline LayoutFingerprint TestLayout(uint8_t n = 1) {
  LayoutFingerprint out;
  out.bytes.fill(n);
  return out;
}

inline SlabDiskOptions TestOptions(const std::string& directory, uint64_t block_bytes = 8192) {
  SlabDiskOptions options;
  options.directory = directory;
  options.disk_id = "disk-a";
  options.layout = TestLayout();
  options.block_bytes = block_bytes;
  options.free_space_floor_bytes = 0;
  options.catalog_reserve_bytes = uint64_t{1} << 20;
  options.slots_per_slab = 16;
  return options;
}

struct TestBlock {
  BlockHeader header;
  std::vector<std::byte> payload;
};

// Block number `n`: a function of n and the size, and of `version` for further copies under the same key.
inline TestBlock MakeBlock(uint64_t n, uint64_t block_bytes = 8192, uint64_t version = 0) {
  TestBlock out;
  std::mt19937_64 random(n * 1000 + version + 1);
  out.payload.resize(block_bytes);
  for (std::byte& b : out.payload) b = static_cast<std::byte>(random());
  std::mt19937_64 key_random(n + 17);
  for (uint8_t& b : out.header.key.bytes) b = static_cast<uint8_t>(key_random());
  for (uint8_t& b : out.header.parent.bytes) b = static_cast<uint8_t>(key_random());
  for (uint8_t& b : out.header.root.bytes) b = 7;
  out.header.start_position = n * 16;
  out.header.layout = TestLayout();
  out.header.format = KvFormat::kBf16;
  out.header.seal_time = absl::FromUnixMicros(1'700'000'000'000'000 + static_cast<int64_t>(n));
  out.header.payload_bytes = block_bytes;
  out.header.checksum = ComputeChecksum(out.header, out.payload);
  return out;
}

// Reads one block; its payload is in `out`.
inline absl::Status ReadBlock(DiskTier& tier, DiskSlot slot, const BlockHeader& expected, std::vector<std::byte>& out) {
  out.assign(expected.payload_bytes, std::byte{0});
  DiskTier::ReadRequest request{slot, expected, out, absl::UnknownError("not set")};
  tier.Read(std::span(&request, 1));
  return request.status;
}

inline void ExpectReads(DiskTier& tier, DiskSlot slot, const TestBlock& block) {
  std::vector<std::byte> out;
  const absl::Status status = ReadBlock(tier, slot, block.header, out);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(out == block.payload);
}

inline std::unique_ptr<SlabDiskTier> OpenTier(const SlabDiskOptions& options, SlabDiskEnvironment environment = {}) {
  absl::StatusOr<std::unique_ptr<SlabDiskTier>> tier = SlabDiskTier::Open(options, std::move(environment));
  if (!tier.ok()) {
    ADD_FAILURE() << tier.status();
    return nullptr;
  }
  return *std::move(tier);
}

// Changes bytes of a slab file behind the tier's back.
inline void Overwrite(const std::string& path, uint64_t offset, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  ASSERT_TRUE(file.is_open()) << path;
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good());
}

// What FaultyIo does instead of the real thing; each field is used up by the calls that it hits.
struct Faults {
  std::atomic<int> write_errno{0};      // until cleared
  std::atomic<int> short_writes{0};     // how many writes stop early, at an uneven byte
  std::atomic<int> stuck_writes{0};     // how many writes report nothing written
  std::atomic<int> torn_writes{0};      // how many writes report all and write the first half
  std::atomic<int> read_errno{0};       // until cleared
  std::atomic<int> short_reads{0};      // how many reads stop early
  std::atomic<int> allocate_errno{0};   // until cleared
  std::atomic<int64_t> free_bytes{-1};  // reported while not negative
  std::atomic<uint64_t> reads{0};
};

class FaultyIo : public FileIo {
 public:
  FaultyIo(std::unique_ptr<FileIo> real, std::shared_ptr<Faults> faults)
      : real_(std::move(real)), faults_(std::move(faults)) {}

  int64_t Write(int fd, uint64_t offset, std::span<const iovec> parts) override {
    if (const int error = faults_->write_errno) return -error;
    if (Use(faults_->stuck_writes)) return 0;
    if (Use(faults_->short_writes)) {
      const int64_t n = real_->Write(fd, offset, parts.first(1));
      return n < 0 ? n : n + (parts.size() > 1 ? 100 : 0);
    }
    if (Use(faults_->torn_writes)) {
      const int64_t n = real_->Write(fd, offset, parts.first(1));
      int64_t all = 0;
      for (const iovec& part : parts) all += static_cast<int64_t>(part.iov_len);
      return n < 0 ? n : all;
    }
    return real_->Write(fd, offset, parts);
  }
  void Read(std::span<ReadOp> ops, absl::FunctionRef<void(size_t)> done) override {
    faults_->reads += ops.size();
    if (const int error = faults_->read_errno) {
      for (size_t i = 0; i < ops.size(); ++i) {
        ops[i].result = -error;
        done(i);
      }
      return;
    }
    real_->Read(ops, [&](size_t i) {
      if (Use(faults_->short_reads) && ops[i].result > 0) ops[i].result /= 2;
      done(i);
    });
  }
  int Allocate(int fd, uint64_t offset, uint64_t bytes) override {
    if (const int error = faults_->allocate_errno) return -error;
    return real_->Allocate(fd, offset, bytes);
  }
  int64_t FreeBytes(const std::string& path) override {
    const int64_t told = faults_->free_bytes;
    return told >= 0 ? told : real_->FreeBytes(path);
  }

 private:
  static bool Use(std::atomic<int>& count) {
    int now = count.load();
    while (now > 0 && !count.compare_exchange_weak(now, now - 1)) {
    }
    return now > 0;
  }

  const std::unique_ptr<FileIo> real_;
  const std::shared_ptr<Faults> faults_;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_KVSTORE_TIERS_DISK_DISK_TEST_UTIL_H_
