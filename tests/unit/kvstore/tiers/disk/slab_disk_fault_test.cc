// Errors of the device and of a full file system: what is refused, what is counted, and how the tier comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <thread>

#include "disk_test_util.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

class SlabDiskFaultTest : public testing::Test {
 protected:
  SlabDiskFaultTest() : options_(TestOptions(dir_.path())), clock_(absl::FromUnixSeconds(1'700'000'000)) {}

  void Open() {
    tier_ = nullptr;
    SlabDiskEnvironment environment;
    environment.io = std::make_unique<FaultyIo>(NewFileIo(), faults_);
    environment.clock = &clock_;
    tier_ = OpenTier(options_, std::move(environment));
    ASSERT_NE(tier_, nullptr);
  }
  absl::StatusOr<DiskSlot> Write(uint64_t n) {
    const TestBlock block = MakeBlock(n);
    return tier_->Write(block.header, block.payload);
  }
  void Advance(absl::Duration by) { clock_.AdvanceTo(clock_.Now() + by); }
  bool BallastExists() const { return std::filesystem::exists(dir_.path() + "/ballast"); }

  TestDir dir_;
  SlabDiskOptions options_;
  ManualClock clock_;
  std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
  std::unique_ptr<SlabDiskTier> tier_;
};

TEST_F(SlabDiskFaultTest, ShortWritesAreContinued) {
  Open();
  faults_->short_writes = 2;
  const absl::StatusOr<DiskSlot> slot = Write(1);
  ASSERT_TRUE(slot.ok()) << slot.status();
  EXPECT_EQ(faults_->short_writes, 0);
  ExpectReads(*tier_, *slot, MakeBlock(1));
}

TEST_F(SlabDiskFaultTest, WriteThatNeverProgressesEndsAsAnError) {
  Open();
  faults_->stuck_writes = 3;
  ASSERT_TRUE(Write(1).ok());
  faults_->stuck_writes = 1000;
  EXPECT_TRUE(absl::IsUnavailable(Write(2).status()));
  EXPECT_GT(faults_->stuck_writes, 900);
}

TEST_F(SlabDiskFaultTest, TornWriteIsDataLossAtRead) {
  Open();
  faults_->torn_writes = 1;
  const absl::StatusOr<DiskSlot> slot = Write(1);
  ASSERT_TRUE(slot.ok());
  std::vector<std::byte> out;
  EXPECT_TRUE(absl::IsDataLoss(ReadBlock(*tier_, *slot, MakeBlock(1).header, out)));
}

TEST_F(SlabDiskFaultTest, ShortReadsAreReadAgain) {
  Open();
  const absl::StatusOr<DiskSlot> slot = Write(1);
  ASSERT_TRUE(slot.ok());
  faults_->short_reads = 2;
  ExpectReads(*tier_, *slot, MakeBlock(1));
  EXPECT_EQ(faults_->short_reads, 0);
  faults_->short_reads = 1000;
  std::vector<std::byte> out;
  EXPECT_TRUE(absl::IsDataLoss(ReadBlock(*tier_, *slot, MakeBlock(1).header, out)));
  EXPECT_GT(faults_->short_reads, 900);
  EXPECT_EQ(tier_->usage().io_errors, 0u);
}

TEST_F(SlabDiskFaultTest, ReadErrorIsUnavailableAndCounted) {
  Open();
  const absl::StatusOr<DiskSlot> slot = Write(1);
  ASSERT_TRUE(slot.ok());
  for (const int error : {EIO, ENOSPC}) {
    faults_->read_errno = error;
    std::vector<std::byte> out;
    EXPECT_TRUE(absl::IsUnavailable(ReadBlock(*tier_, *slot, MakeBlock(1).header, out)));
  }
  faults_->read_errno = 0;
  ExpectReads(*tier_, *slot, MakeBlock(1));
  EXPECT_EQ(tier_->usage().io_errors, 2u);
  EXPECT_FALSE(tier_->usage().read_only);
}

TEST_F(SlabDiskFaultTest, MemoryThatDirectIoRefusesIsCopied) {
  Open();
  const absl::StatusOr<DiskSlot> slot = Write(1);
  ASSERT_TRUE(slot.ok());
  AlignedBufferPool aligned(8192, 1);
  const AlignedBuffer out = aligned.Take();
  faults_->read_errno = EFAULT;
  DiskTier::ReadRequest request{*slot, MakeBlock(1).header, {out.data(), 8192}, absl::OkStatus()};
  const uint64_t before = faults_->reads;
  tier_->Read(std::span(&request, 1));
  EXPECT_TRUE(absl::IsUnavailable(request.status));
  EXPECT_EQ(faults_->reads - before, 2u);
}

TEST_F(SlabDiskFaultTest, WriteErrorMakesReadOnlyForASecondAndRetiresTheSlot) {
  Open();
  const absl::StatusOr<DiskSlot> good = Write(1);
  ASSERT_TRUE(good.ok());
  faults_->write_errno = EIO;
  EXPECT_TRUE(absl::IsUnavailable(Write(2).status()));
  faults_->write_errno = 0;
  EXPECT_TRUE(tier_->usage().read_only);
  EXPECT_EQ(tier_->usage().io_errors, 1u);
  EXPECT_TRUE(absl::IsUnavailable(tier_->health()));
  const absl::Status refused = Write(2).status();
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("read-only"));
  ExpectReads(*tier_, *good, MakeBlock(1));
  Advance(absl::Seconds(1));
  const absl::StatusOr<DiskSlot> healed = Write(2);
  ASSERT_TRUE(healed.ok()) << healed.status();
  EXPECT_EQ(healed->value(), good->value() + 2);
  EXPECT_FALSE(tier_->usage().read_only);
  EXPECT_TRUE(tier_->health().ok());
  EXPECT_EQ(tier_->usage().used_blocks, 2u);
}

TEST_F(SlabDiskFaultTest, InjectedFullFileSystemStoresNothingAndStaysUsable) {
  Open();
  ASSERT_TRUE(Write(1).ok());
  faults_->write_errno = ENOSPC;
  EXPECT_TRUE(absl::IsResourceExhausted(Write(2).status()));
  EXPECT_FALSE(tier_->usage().read_only);
  EXPECT_EQ(tier_->usage().used_blocks, 1u);
  faults_->write_errno = 0;
  faults_->allocate_errno = ENOSPC;
  uint64_t n = 2;
  while (Write(n).ok()) ++n;
  EXPECT_TRUE(absl::IsResourceExhausted(Write(n).status()));
  EXPECT_FALSE(tier_->usage().read_only);
  faults_->allocate_errno = 0;
  EXPECT_TRUE(Write(n).ok());
  Open();
  EXPECT_EQ(tier_->TakeRecovered().size(), n);
}

TEST_F(SlabDiskFaultTest, FileSystemWithoutAllocationGrowsSparsely) {
  faults_->allocate_errno = EOPNOTSUPP;
  Open();
  for (uint64_t n = 0; n < 20; ++n) {
    const absl::StatusOr<DiskSlot> slot = Write(n);
    ASSERT_TRUE(slot.ok()) << slot.status();
    ExpectReads(*tier_, *slot, MakeBlock(n));
  }
}

TEST_F(SlabDiskFaultTest, SlabsDoNotGrowIntoAMissingCatalogReserve) {
  faults_->free_bytes = static_cast<int64_t>(options_.catalog_reserve_bytes) - 1;
  Open();
  EXPECT_FALSE(BallastExists());
  const absl::Status refused = Write(1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("catalog reserve"));
  faults_->free_bytes = -1;
  Advance(absl::Seconds(2));
  EXPECT_TRUE(Write(1).ok());
  EXPECT_TRUE(BallastExists());
}

// Limits how far this process may write into any file, while it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(uint64_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &old_); }

 private:
  rlimit old_;
};

TEST_F(SlabDiskFaultTest, CatalogErrorMakesReadOnlyAndHealsAtMostOncePerSecond) {
  Open();
  const absl::StatusOr<DiskSlot> kept = Write(0);
  const absl::StatusOr<DiskSlot> erased = Write(1);
  ASSERT_TRUE(kept.ok() && erased.ok());
  // Reuses one slot until the catalog's log is longer than the slabs in use.
  const uint64_t limit = 6 * SlotBytes(8192);
  for (uint64_t n = 0; n < 600; ++n) {
    const absl::StatusOr<DiskSlot> slot = Write(100 + n);
    ASSERT_TRUE(slot.ok());
    tier_->Erase(*slot);
  }
  {
    FileSizeLimit file_size(limit);
    EXPECT_TRUE(absl::IsUnavailable(Write(2).status()));
    EXPECT_TRUE(tier_->usage().read_only);
    EXPECT_EQ(tier_->usage().io_errors, 1u);
    EXPECT_EQ(tier_->usage().used_blocks, 2u);
    ExpectReads(*tier_, *kept, MakeBlock(0));
    // Erased at once for readers, later for the catalog.
    tier_->Erase(*erased);
    std::vector<std::byte> out;
    EXPECT_TRUE(absl::IsDataLoss(ReadBlock(*tier_, *erased, MakeBlock(1).header, out)));
  }
  const absl::StatusOr<DiskSlot> healed = Write(3);
  ASSERT_TRUE(healed.ok()) << healed.status();
  EXPECT_FALSE(tier_->usage().read_only);
  EXPECT_EQ(tier_->usage().used_blocks, 2u);
  ExpectReads(*tier_, *healed, MakeBlock(3));
  ASSERT_TRUE(Write(4).ok());
  Open();
  const std::vector<RecoveredBlock> recovered = tier_->TakeRecovered();
  std::vector<BlockKey> keys;
  for (const RecoveredBlock& block : recovered) keys.push_back(block.header.key);
  EXPECT_THAT(keys,
              testing::UnorderedElementsAre(MakeBlock(0).header.key, MakeBlock(3).header.key, MakeBlock(4).header.key));
}

// A file system of its own, so that it can really be full.
class SlabDiskFullTest : public SlabDiskFaultTest {
 protected:
  static constexpr uint64_t kMiB = uint64_t{1} << 20;

  void SetUp() override {
    if (!dir_.MountTmpfs(24 * kMiB)) GTEST_SKIP() << "cannot mount a tmpfs";
    options_.catalog_reserve_bytes = 6 * kMiB;
  }
  void TearDown() override { tier_ = nullptr; }

  // Takes all space that is left.
  void Fill() {
    std::ofstream file(dir_.path() + "/filler", std::ios::binary | std::ios::app);
    const std::string piece(4096, 'f');
    while (file.write(piece.data(), static_cast<std::streamsize>(piece.size())).flush()) {
    }
  }
  void Unfill() { std::filesystem::remove(dir_.path() + "/filler"); }
};

TEST_F(SlabDiskFullTest, FullUnderTheSlabsRefusesAndEraseMakesRoom) {
  Open();
  std::vector<DiskSlot> slots;
  absl::Status refused;
  for (uint64_t n = 0; refused.ok(); ++n) {
    ASSERT_LT(n, 10'000u);
    const absl::StatusOr<DiskSlot> slot = Write(n);
    refused = slot.status();
    if (slot.ok()) slots.push_back(*slot);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_GT(slots.size(), 1000u);
  EXPECT_TRUE(BallastExists());
  EXPECT_FALSE(tier_->usage().read_only);
  EXPECT_EQ(tier_->usage().used_blocks, slots.size());
  for (uint64_t n = 0; n < slots.size(); n += 50) ExpectReads(*tier_, slots[n], MakeBlock(n));
  tier_->Erase(slots[10]);
  const absl::StatusOr<DiskSlot> again = Write(90'000);
  // The catalog itself may have found no room; then it heals from the ballast.
  if (!again.ok()) {
    ASSERT_TRUE(absl::IsUnavailable(again.status())) << again.status();
    Advance(absl::Seconds(2));
    ASSERT_TRUE(Write(90'000).ok());
  }
  Open();
  EXPECT_EQ(tier_->TakeRecovered().size(), slots.size());
}

TEST_F(SlabDiskFullTest, FullUnderTheCatalogGivesBackTheBallastAndHeals) {
  Open();
  std::vector<DiskSlot> slots;
  for (uint64_t n = 0; n < 10; ++n) slots.push_back(*Write(n));
  ASSERT_TRUE(BallastExists());
  Fill();
  // Slots are free, so that only the catalog needs space.
  absl::Status failed;
  for (uint64_t n = 0; n < 5000 && failed.ok(); ++n) {
    const absl::StatusOr<DiskSlot> slot = Write(1000 + n);
    failed = slot.status();
    if (slot.ok()) tier_->Erase(*slot);
  }
  ASSERT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_TRUE(tier_->usage().read_only);
  EXPECT_GT(tier_->usage().io_errors, 0u);
  for (uint64_t n = 0; n < 10; ++n) ExpectReads(*tier_, slots[n], MakeBlock(n));
  const absl::StatusOr<DiskSlot> healed = Write(20);
  ASSERT_TRUE(healed.ok()) << healed.status();
  EXPECT_FALSE(BallastExists());
  EXPECT_FALSE(tier_->usage().read_only);
  ExpectReads(*tier_, *healed, MakeBlock(20));

  // Full again, without a ballast: refused until there is space, tried once per second.
  Fill();
  failed = absl::OkStatus();
  for (uint64_t n = 0; n < 5000 && failed.ok(); ++n) {
    const absl::StatusOr<DiskSlot> slot = Write(10'000 + n);
    failed = slot.status();
    if (slot.ok()) tier_->Erase(*slot);
  }
  ASSERT_TRUE(absl::IsUnavailable(failed)) << failed;
  Advance(absl::Seconds(2));
  EXPECT_TRUE(absl::IsUnavailable(Write(21).status()));
  const uint64_t errors = tier_->usage().io_errors;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(absl::IsUnavailable(Write(21).status()));
  EXPECT_EQ(tier_->usage().io_errors, errors);
  Unfill();
  EXPECT_TRUE(absl::IsUnavailable(Write(21).status()));
  Advance(absl::Seconds(1));
  ASSERT_TRUE(Write(21).ok()) << tier_->health();
  // What was erased while read-only is gone, what was kept is there.
  Open();
  EXPECT_TRUE(BallastExists());
  EXPECT_EQ(tier_->TakeRecovered().size(), 12u);
  EXPECT_EQ(tier_->usage().recovery_dropped, 0u);
}

TEST_F(SlabDiskFullTest, ComesBackEachTimeUnderParallelLoad) {
  options_.slots_per_slab = 64;
  options_.byte_cap = 64 * SlotBytes(8192);
  Open();
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> stored{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const TestBlock block = MakeBlock(t);
      while (!stop) {
        const absl::StatusOr<DiskSlot> slot = tier_->Write(block.header, block.payload);
        if (slot.ok()) {
          std::vector<std::byte> out;
          EXPECT_TRUE(ReadBlock(*tier_, *slot, block.header, out).ok());
          tier_->Erase(*slot);
          ++stored;
        } else {
          EXPECT_TRUE(absl::IsUnavailable(slot.status()) || absl::IsResourceExhausted(slot.status())) << slot.status();
        }
      }
    });
  }
  for (int cycle = 0; cycle < 40; ++cycle) {
    SCOPED_TRACE(cycle);
    Fill();
    // The catalog takes what the ballast gave, and fails again; then there is space.
    const absl::Time give_up = absl::Now() + absl::Seconds(20);
    for (uint64_t errors = tier_->usage().io_errors; tier_->usage().io_errors < errors + 3 && absl::Now() < give_up;) {
      Fill();
      Advance(absl::Milliseconds(300));
      std::this_thread::yield();
    }
    Unfill();
    const uint64_t before = stored;
    while (stored < before + 50 && absl::Now() < give_up) {
      Advance(absl::Milliseconds(300));
      std::this_thread::yield();
    }
    ASSERT_LT(absl::Now(), give_up) << tier_->health();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tier_->usage().used_blocks, 0u);
  Open();
  EXPECT_TRUE(tier_->TakeRecovered().empty());
}

TEST_F(SlabDiskFullTest, OpensOnAFullFileSystem) {
  Open();
  for (uint64_t n = 0; n < 10; ++n) ASSERT_TRUE(Write(n).ok());
  tier_ = nullptr;
  Fill();
  Open();
  EXPECT_EQ(tier_->TakeRecovered().size(), 10u);
}

TEST_F(SlabDiskFullTest, NoRoomForACatalogIsAnErrorNotACrash) {
  Fill();
  const absl::Status status = SlabDiskTier::Open(options_).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  Unfill();
  Open();
  EXPECT_TRUE(Write(1).ok());
}

}  // namespace
}  // namespace kvmesh
