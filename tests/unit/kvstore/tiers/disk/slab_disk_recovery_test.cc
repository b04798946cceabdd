// What the next process finds: after a clean close, a kill, another configuration, and damage.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <map>
#include <set>

#include "disk_test_util.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

std::map<BlockKey, RecoveredBlock> ByKey(std::vector<RecoveredBlock> recovered) {
  std::map<BlockKey, RecoveredBlock> out;
  for (RecoveredBlock& block : recovered) EXPECT_TRUE(out.emplace(block.header.key, block).second);
  return out;
}

// This program, running only the child test below on `directory`; it reports through a pipe and ends by a signal.
class Child {
 public:
  explicit Child(const std::string& directory) {
    int fds[2];
    if (::pipe(fds) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::alarm(60);  // an end of its own, should the test not come to it
      ::dup2(fds[1], 100);
      ::setenv("KVMESH_DISK_CHILD", directory.c_str(), 1);
      ::execl("/proc/self/exe", "child", "--gtest_filter=DiskChild.DISABLED_WriteUntilKilled",
              "--gtest_also_run_disabled_tests", static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(fds[1]);
    read_ = UniqueFd(fds[0]);
  }
  ~Child() { Kill(); }

  // The next number that the child reported; -1 at its end.
  int64_t Next() {
    int64_t n;
    return ::read(read_.get(), &n, sizeof(n)) == sizeof(n) ? n : -1;
  }
  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
  UniqueFd read_;
};

// Writes blocks 0, 1, 2...; erases n - 100 before it writes n, so that slots are reused; reports n after each write.
TEST(DiskChild, DISABLED_WriteUntilKilled) {
  const char* directory = ::getenv("KVMESH_DISK_CHILD");
  ASSERT_NE(directory, nullptr);
  auto tier = OpenTier(TestOptions(directory));
  ASSERT_NE(tier, nullptr);
  std::map<int64_t, DiskSlot> slots;
  for (int64_t n = 0;; ++n) {
    if (n >= 100) tier->Erase(slots[n - 100]);
    const TestBlock block = MakeBlock(static_cast<uint64_t>(n));
    const absl::StatusOr<DiskSlot> slot = tier->Write(block.header, block.payload);
    ASSERT_TRUE(slot.ok()) << slot.status();
    slots[n] = *slot;
    if (::write(100, &n, sizeof(n)) != sizeof(n)) ::_exit(1);
  }
}

class SlabDiskRecoveryTest : public testing::Test {
 protected:
  SlabDiskRecoveryTest() : options_(TestOptions(dir_.path())) {}

  void Reopen() {
    tier_ = nullptr;
    tier_ = OpenTier(options_);
    ASSERT_NE(tier_, nullptr);
  }
  void WriteBlocks(uint64_t first, uint64_t count) {
    for (uint64_t n = first; n < first + count; ++n) {
      const TestBlock block = MakeBlock(n, options_.block_bytes);
      const absl::StatusOr<DiskSlot> slot = tier_->Write(block.header, block.payload);
      ASSERT_TRUE(slot.ok()) << slot.status();
      slots_[n] = *slot;
    }
  }

  TestDir dir_;
  SlabDiskOptions options_;
  std::unique_ptr<SlabDiskTier> tier_;
  std::map<uint64_t, DiskSlot> slots_;
};

TEST_F(SlabDiskRecoveryTest, FindsWhatWasWrittenAndNotErased) {
  Reopen();
  EXPECT_TRUE(tier_->TakeRecovered().empty());
  WriteBlocks(0, 40);
  for (uint64_t n = 0; n < 40; n += 3) tier_->Erase(slots_[n]);
  Reopen();
  const auto found = ByKey(tier_->TakeRecovered());
  EXPECT_TRUE(tier_->TakeRecovered().empty());
  EXPECT_EQ(found.size(), 26u);
  EXPECT_EQ(tier_->usage().used_blocks, 26u);
  EXPECT_EQ(tier_->usage().recovery_dropped, 0u);
  for (uint64_t n = 0; n < 40; ++n) {
    const TestBlock block = MakeBlock(n);
    ASSERT_EQ(found.contains(block.header.key), n % 3 != 0) << n;
    if (n % 3 == 0) continue;
    EXPECT_EQ(found.at(block.header.key).header, block.header);
    EXPECT_EQ(found.at(block.header.key).slot, slots_[n]);
    ExpectReads(*tier_, slots_[n], block);
  }
  // Freed slots are taken again, used ones are not.
  WriteBlocks(100, 14);
  for (uint64_t n = 0; n < 40; ++n) {
    if (n % 3 != 0) ExpectReads(*tier_, slots_[n], MakeBlock(n));
  }
}

TEST_F(SlabDiskRecoveryTest, BlocksOfLayerGroupsBesideOneBlockOfTheChainAreBlocksOfTheirOwn) {
  Reopen();
  TestBlock block = MakeBlock(1);
  for (const uint32_t group : {0u, 1u, 2u}) {
    block.header.group = group;
    block.header.checksum = ComputeChecksum(block.header, block.payload);
    ASSERT_TRUE(tier_->Write(block.header, block.payload).ok());
  }
  Reopen();
  std::set<uint32_t> groups;
  for (const RecoveredBlock& recovered : tier_->TakeRecovered()) {
    groups.insert(recovered.header.group);
    block.header = recovered.header;
    ExpectReads(*tier_, recovered.slot, block);
  }
  EXPECT_EQ(groups, (std::set<uint32_t>{0, 1, 2}));
}

TEST_F(SlabDiskRecoveryTest, KilledWriterLosesNoReportedBlock) {
  for (const int64_t stop : {5, 150, 450}) {
    SCOPED_TRACE(stop);
    int64_t last = -1;
    {
      Child child(dir_.path());
      while (last < stop) {
        const int64_t n = child.Next();
        ASSERT_EQ(n, last + 1);
        last = n;
      }
      child.Kill();
      for (int64_t n = child.Next(); n >= 0; n = child.Next()) last = n;
    }
    Reopen();
    const auto found = ByKey(tier_->TakeRecovered());
    // The kill may have come after the next erase, and after the next write was cataloged.
    for (int64_t n = std::max<int64_t>(0, last - 98); n <= last; ++n) {
      const TestBlock block = MakeBlock(static_cast<uint64_t>(n));
      ASSERT_TRUE(found.contains(block.header.key)) << n << " of " << last;
      ExpectReads(*tier_, found.at(block.header.key).slot, block);
    }
    EXPECT_LE(found.size(), 101u);
    EXPECT_EQ(tier_->usage().recovery_dropped, 0u);
    for (const auto& [key, block] : found) tier_->Erase(block.slot);
    EXPECT_EQ(tier_->usage().used_blocks, 0u);
    tier_ = nullptr;
  }
}

TEST_F(SlabDiskRecoveryTest, TwoProcessesCannotShareADirectory) {
  Child child(dir_.path());
  ASSERT_EQ(child.Next(), 0);
  const absl::Status busy = SlabDiskTier::Open(options_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(busy)) << busy;
  EXPECT_THAT(std::string(busy.message()), HasSubstr("in use by another process"));
  child.Kill();
  Reopen();
  EXPECT_TRUE(absl::IsFailedPrecondition(SlabDiskTier::Open(options_).status()));
}

TEST_F(SlabDiskRecoveryTest, AnotherDiskIdIsRefusedAndHarmsNothing) {
  Reopen();
  WriteBlocks(0, 3);
  tier_ = nullptr;
  SlabDiskOptions other = options_;
  other.disk_id = "disk-b";
  const absl::Status refused = SlabDiskTier::Open(other).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("belongs to disk id 'disk-a'"));
  Reopen();
  EXPECT_EQ(tier_->TakeRecovered().size(), 3u);
}

TEST_F(SlabDiskRecoveryTest, AnotherLayoutOrBlockSizeEmptiesTheDirectory) {
  Reopen();
  WriteBlocks(0, 20);
  options_.layout = TestLayout(2);
  Reopen();
  EXPECT_TRUE(tier_->TakeRecovered().empty());
  EXPECT_EQ(tier_->usage().recovery_dropped, 20u);
  EXPECT_EQ(tier_->usage().used_blocks, 0u);
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/slab-000000"));
  options_.layout = TestLayout();
  options_.block_bytes = 4096;
  Reopen();
  EXPECT_EQ(tier_->usage().recovery_dropped, 0u);
  WriteBlocks(0, 5);
  Reopen();
  EXPECT_EQ(tier_->TakeRecovered().size(), 5u);
}

TEST_F(SlabDiskRecoveryTest, AnotherPoolsLayoutEmptiesTheDirectory) {
  Reopen();
  WriteBlocks(0, 5);
  options_.pool_layout = TestLayout();  // the same, named
  Reopen();
  EXPECT_EQ(tier_->TakeRecovered().size(), 5u);
  for (const uint64_t pool : {2, 3}) {
    options_.pool_layout = TestLayout(pool);
    Reopen();
    EXPECT_EQ(tier_->usage().recovery_dropped, 5u);
    WriteBlocks(0, 5);
    Reopen();
    EXPECT_EQ(tier_->TakeRecovered().size(), 5u);
  }
  options_.pool_layout = std::nullopt;
  Reopen();
  EXPECT_EQ(tier_->usage().recovery_dropped, 5u);
}

TEST_F(SlabDiskRecoveryTest, AnotherSlabSizeKeepsTheContents) {
  Reopen();
  WriteBlocks(0, 40);
  options_.slots_per_slab = 7;
  Reopen();
  EXPECT_EQ(tier_->TakeRecovered().size(), 40u);
  for (uint64_t n = 0; n < 40; ++n) ExpectReads(*tier_, slots_[n], MakeBlock(n));
}

TEST_F(SlabDiskRecoveryTest, LowerByteCapDropsWhatLiesBeyondIt) {
  Reopen();
  WriteBlocks(0, 40);
  options_.byte_cap = 10 * SlotBytes(8192);
  Reopen();
  EXPECT_EQ(tier_->TakeRecovered().size(), 10u);
  EXPECT_EQ(tier_->usage().recovery_dropped, 30u);
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/slab-000001"));
  EXPECT_LE(std::filesystem::file_size(dir_.path() + "/slab-000000"), options_.byte_cap);
}

TEST_F(SlabDiskRecoveryTest, LostSlabDropsItsBlocksOnly) {
  Reopen();
  WriteBlocks(0, 40);
  tier_ = nullptr;
  std::filesystem::remove(dir_.path() + "/slab-000001");
  Reopen();
  EXPECT_EQ(tier_->TakeRecovered().size(), 24u);
  EXPECT_EQ(tier_->usage().recovery_dropped, 16u);
  WriteBlocks(100, 16);
  for (const auto& [n, slot] : slots_) {
    if (n >= 100 || slot.value() < 16 || slot.value() >= 32) ExpectReads(*tier_, slot, MakeBlock(n));
  }
}

TEST_F(SlabDiskRecoveryTest, SlotHeaderDecidesBetweenTwoKeysOfOneSlot) {
  Reopen();
  WriteBlocks(0, 4);
  tier_ = nullptr;
  const TestBlock stale_a = MakeBlock(50);
  const TestBlock stale_b = MakeBlock(51);
  {
    auto catalog = Catalog::Open(dir_.path() + "/catalog");
    ASSERT_TRUE(catalog.ok()) << catalog.status();
    for (const TestBlock* stale : {&stale_a, &stale_b}) {
      EncodedHeader encoded;
      EncodeBlockHeader(stale->header, encoded);
      // Slot 1 holds block 1; both entries for slot 6 are wrong.
      const DiskSlot slot = stale == &stale_a ? slots_[1] : DiskSlot(6);
      ASSERT_TRUE((*catalog)->Put(encoded, stale->header.key, slot).ok());
    }
    const TestBlock stale_c = MakeBlock(52);
    EncodedHeader encoded;
    EncodeBlockHeader(stale_c.header, encoded);
    ASSERT_TRUE((*catalog)->Put(encoded, stale_c.header.key, DiskSlot(6)).ok());
  }
  Reopen();
  const auto found = ByKey(tier_->TakeRecovered());
  EXPECT_EQ(found.size(), 4u);
  EXPECT_TRUE(found.contains(MakeBlock(1).header.key));
  EXPECT_EQ(tier_->usage().recovery_dropped, 3u);
  // Dropped for good.
  Reopen();
  EXPECT_EQ(tier_->TakeRecovered().size(), 4u);
  EXPECT_EQ(tier_->usage().recovery_dropped, 0u);
}

TEST_F(SlabDiskRecoveryTest, StaleEntryOfAReusedSlotIsDataLossAtRead) {
  Reopen();
  WriteBlocks(0, 2);
  tier_ = nullptr;
  const TestBlock stale = MakeBlock(50);
  {
    auto catalog = Catalog::Open(dir_.path() + "/catalog");
    ASSERT_TRUE(catalog.ok());
    EncodedHeader encoded;
    EncodeBlockHeader(stale.header, encoded);
    ASSERT_TRUE((*catalog)->Remove(MakeBlock(0).header.key, slots_[0]).ok());
    ASSERT_TRUE((*catalog)->Put(encoded, stale.header.key, slots_[0]).ok());
  }
  Reopen();
  const auto found = ByKey(tier_->TakeRecovered());
  ASSERT_TRUE(found.contains(stale.header.key));
  std::vector<std::byte> out;
  EXPECT_TRUE(absl::IsDataLoss(ReadBlock(*tier_, slots_[0], stale.header, out)));
}

TEST_F(SlabDiskRecoveryTest, CorruptCatalogStartsEmpty) {
  // The manifest, and the tables, which show their damage only when they are scanned.
  for (const std::string& damage : {std::string("MANIFEST-"), std::string(".sst"), std::string("CURRENT")}) {
    SCOPED_TRACE(damage);
    Reopen();
    WriteBlocks(0, 20);
    Reopen();  // flushes the log into a table
    tier_ = nullptr;
    bool damaged = false;
    for (const auto& file : std::filesystem::directory_iterator(dir_.path() + "/catalog")) {
      if (file.path().string().find(damage) == std::string::npos) continue;
      Overwrite(file.path().string(), 0, std::string(std::min<uint64_t>(file.file_size(), 3000), 'x'));
      damaged = true;
    }
    ASSERT_TRUE(damaged);
    Reopen();
    EXPECT_TRUE(tier_->TakeRecovered().empty());
    EXPECT_GT(tier_->usage().recovery_dropped, 0u);
    WriteBlocks(0, 5);
    Reopen();
    EXPECT_EQ(tier_->TakeRecovered().size(), 5u);
    for (const auto& [n, slot] : slots_) {
      if (n < 5) tier_->Erase(slot);
    }
  }
}

TEST_F(SlabDiskRecoveryTest, LostGeometryEmptiesTheDirectory) {
  Reopen();
  WriteBlocks(0, 5);
  tier_ = nullptr;
  Overwrite(dir_.path() + "/geometry", 0, "something");
  Reopen();
  EXPECT_TRUE(tier_->TakeRecovered().empty());
  EXPECT_EQ(tier_->usage().recovery_dropped, 5u);
}

}  // namespace
}  // namespace kvmesh
