// Writes, reads and erases of one open tier.
#include "kvstore/tiers/disk/slab_disk_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "disk_test_util.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

// Block sizes: below, at, just above a page, not of whole pages, and large.
class SlabDiskTierTest : public testing::TestWithParam<uint64_t> {
 protected:
  TestDir dir_;
};

TEST_P(SlabDiskTierTest, RoundTripsIntoAlignedAndUnalignedMemory) {
  auto tier = OpenTier(TestOptions(dir_.path(), GetParam()));
  ASSERT_NE(tier, nullptr);
  AlignedBufferPool aligned(PaddedPayloadBytes(GetParam()), 1);
  for (uint64_t n = 0; n < 4; ++n) {
    const TestBlock block = MakeBlock(n, GetParam());
    // One write from aligned memory, one from memory that direct I/O cannot use.
    const AlignedBuffer source = aligned.Take();
    std::memcpy(source.data(), block.payload.data(), block.payload.size());
    std::vector<std::byte> shifted(block.payload.size() + 3);
    std::memcpy(shifted.data() + 3, block.payload.data(), block.payload.size());
    const std::span<const std::byte> payload = n % 2 == 0 ? std::span<const std::byte>(source.data(), GetParam())
                                                          : std::span<const std::byte>(shifted).subspan(3);
    const absl::StatusOr<DiskSlot> slot = tier->Write(block.header, payload);
    ASSERT_TRUE(slot.ok()) << slot.status();
    ExpectReads(*tier, *slot, block);
    const AlignedBuffer target = aligned.Take();
    DiskTier::ReadRequest request{*slot, block.header, {target.data(), GetParam()}, absl::UnknownError("")};
    tier->Read(std::span(&request, 1));
    EXPECT_TRUE(request.status.ok()) << request.status;
    EXPECT_EQ(std::memcmp(target.data(), block.payload.data(), GetParam()), 0);
  }
  EXPECT_EQ(tier->usage().used_blocks, 4u);
  EXPECT_EQ(tier->usage().io_errors, 0u);
  EXPECT_TRUE(tier->health().ok());
}

TEST_P(SlabDiskTierTest, BatchReadSetsEachStatusByItself) {
  auto tier = OpenTier(TestOptions(dir_.path(), GetParam()));
  ASSERT_NE(tier, nullptr);
  constexpr uint64_t kBlocks = 100;
  std::vector<TestBlock> blocks;
  std::vector<DiskSlot> slots;
  for (uint64_t n = 0; n < kBlocks; ++n) {
    blocks.push_back(MakeBlock(n, GetParam()));
    const absl::StatusOr<DiskSlot> slot = tier->Write(blocks[n].header, blocks[n].payload);
    ASSERT_TRUE(slot.ok()) << slot.status();
    slots.push_back(*slot);
  }
  std::vector<std::vector<std::byte>> out(kBlocks, std::vector<std::byte>(GetParam()));
  std::vector<DiskTier::ReadRequest> requests;
  for (uint64_t n = 0; n < kBlocks; ++n)
    requests.push_back({slots[n], blocks[n].header, out[n], absl::UnknownError("")});
  requests[3].expected = blocks[4].header;
  requests[5].slot = DiskSlot(1'000'000);
  requests[7].out = requests[7].out.first(GetParam() - 1);
  tier->Read(requests);
  for (uint64_t n = 0; n < kBlocks; ++n) {
    if (n == 3 || n == 5) {
      EXPECT_TRUE(absl::IsDataLoss(requests[n].status)) << requests[n].status;
    } else if (n == 7) {
      EXPECT_TRUE(absl::IsInvalidArgument(requests[n].status));
    } else {
      EXPECT_TRUE(requests[n].status.ok()) << requests[n].status;
      EXPECT_TRUE(out[n] == blocks[n].payload) << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(BlockBytes, SlabDiskTierTest, testing::Values(100, 4096, 4097, 65536 + 12, 262144));

class SlabDiskTierOneTest : public testing::Test {
 protected:
  void Open(const SlabDiskOptions& options) {
    faults_ = std::make_shared<Faults>();
    SlabDiskEnvironment environment;
    environment.io = std::make_unique<FaultyIo>(NewFileIo(), faults_);
    tier_ = OpenTier(options, std::move(environment));
    ASSERT_NE(tier_, nullptr);
  }
  DiskSlot MustWrite(const TestBlock& block) {
    const absl::StatusOr<DiskSlot> slot = tier_->Write(block.header, block.payload);
    EXPECT_TRUE(slot.ok()) << slot.status();
    return slot.ok() ? *slot : DiskSlot(~uint64_t{0});
  }
  std::string SlabPath() const { return dir_.path() + "/slab-000000"; }
  absl::Status ReadStatus(DiskSlot slot, const TestBlock& block) {
    std::vector<std::byte> out;
    return ReadBlock(*tier_, slot, block.header, out);
  }

  TestDir dir_;
  std::shared_ptr<Faults> faults_;
  std::unique_ptr<SlabDiskTier> tier_;
};

TEST_F(SlabDiskTierOneTest, RefusesBlocksOfAnotherShape) {
  Open(TestOptions(dir_.path()));
  TestBlock block = MakeBlock(1);
  EXPECT_TRUE(absl::IsInvalidArgument(tier_->Write(block.header, std::span(block.payload).first(8191)).status()));
  block.header.payload_bytes = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(tier_->Write(block.header, block.payload).status()));
  block = MakeBlock(1);
  block.header.layout = TestLayout(9);
  EXPECT_TRUE(absl::IsInvalidArgument(tier_->Write(block.header, block.payload).status()));
  EXPECT_EQ(tier_->usage().used_blocks, 0u);
}

TEST_F(SlabDiskTierOneTest, ErasedSlotIsUnreadableAndReused) {
  Open(TestOptions(dir_.path()));
  const TestBlock a = MakeBlock(1);
  const TestBlock b = MakeBlock(2);
  const DiskSlot slot = MustWrite(a);
  tier_->Erase(slot);
  tier_->Erase(slot);
  tier_->Erase(DiskSlot(12345));
  EXPECT_EQ(tier_->usage().used_blocks, 0u);
  EXPECT_TRUE(absl::IsDataLoss(ReadStatus(slot, a)));
  EXPECT_EQ(MustWrite(b), slot);
  EXPECT_TRUE(absl::IsDataLoss(ReadStatus(slot, a)));
  ExpectReads(*tier_, slot, b);
}

TEST_F(SlabDiskTierOneTest, FlippedBytesAreDataLoss) {
  Open(TestOptions(dir_.path()));
  std::vector<TestBlock> blocks;
  std::vector<DiskSlot> slots;
  for (uint64_t n = 0; n < 3; ++n) {
    blocks.push_back(MakeBlock(n));
    slots.push_back(MustWrite(blocks.back()));
  }
  const uint64_t slot_bytes = SlotBytes(8192);
  // The tier's direct I/O bypasses the page cache that these writes go through; the kernel keeps them coherent.
  Overwrite(SlabPath(), slots[0].value() * slot_bytes + 4096 + 8191,
            std::string(1, static_cast<char>(~blocks[0].payload[8191])));
  Overwrite(SlabPath(), slots[1].value() * slot_bytes + 30,
            std::string(1, static_cast<char>(~blocks[1].header.key.bytes[6])));
  EXPECT_TRUE(absl::IsDataLoss(ReadStatus(slots[0], blocks[0])));
  EXPECT_TRUE(absl::IsDataLoss(ReadStatus(slots[1], blocks[1])));
  ExpectReads(*tier_, slots[2], blocks[2]);
  EXPECT_EQ(tier_->usage().io_errors, 0u);
  EXPECT_FALSE(tier_->usage().read_only);
}

TEST_F(SlabDiskTierOneTest, SwappedSlotsAreDataLoss) {
  Open(TestOptions(dir_.path()));
  const TestBlock a = MakeBlock(1);
  const TestBlock b = MakeBlock(2);
  const DiskSlot slot_a = MustWrite(a);
  const DiskSlot slot_b = MustWrite(b);
  const uint64_t slot_bytes = SlotBytes(8192);
  std::string bytes_a(slot_bytes, 0), bytes_b(slot_bytes, 0);
  {
    std::ifstream file(SlabPath(), std::ios::binary);
    file.seekg(static_cast<std::streamoff>(slot_a.value() * slot_bytes));
    file.read(bytes_a.data(), static_cast<std::streamsize>(slot_bytes));
    file.seekg(static_cast<std::streamoff>(slot_b.value() * slot_bytes));
    file.read(bytes_b.data(), static_cast<std::streamsize>(slot_bytes));
    ASSERT_TRUE(file.good());
  }
  Overwrite(SlabPath(), slot_a.value() * slot_bytes, bytes_b);
  Overwrite(SlabPath(), slot_b.value() * slot_bytes, bytes_a);
  EXPECT_TRUE(absl::IsDataLoss(ReadStatus(slot_a, a)));
  EXPECT_TRUE(absl::IsDataLoss(ReadStatus(slot_b, b)));
  // The bytes themselves are whole: under the other's header they read.
  ExpectReads(*tier_, slot_a, b);
}

TEST_F(SlabDiskTierOneTest, TruncatedSlabIsDataLoss) {
  Open(TestOptions(dir_.path()));
  const TestBlock block = MakeBlock(1);
  const DiskSlot slot = MustWrite(block);
  std::filesystem::resize_file(SlabPath(), 5000);
  EXPECT_TRUE(absl::IsDataLoss(ReadStatus(slot, block)));
}

TEST_F(SlabDiskTierOneTest, ByteCapRefusesAndEraseMakesRoom) {
  SlabDiskOptions options = TestOptions(dir_.path());
  options.byte_cap = 20 * SlotBytes(8192) + 5;  // not of whole slabs
  Open(options);
  EXPECT_EQ(tier_->usage().capacity_blocks, 20u);
  std::vector<DiskSlot> slots;
  for (uint64_t n = 0; n < 20; ++n) slots.push_back(MustWrite(MakeBlock(n)));
  const TestBlock extra = MakeBlock(99);
  const absl::Status refused = tier_->Write(extra.header, extra.payload).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("byte cap"));
  uint64_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(dir_.path())) {
    if (file.path().filename().string().starts_with("slab-")) bytes += file.file_size();
  }
  EXPECT_LE(bytes, options.byte_cap);
  tier_->Erase(slots[7]);
  EXPECT_EQ(MustWrite(extra), slots[7]);
  EXPECT_FALSE(tier_->usage().read_only);
}

TEST_F(SlabDiskTierOneTest, FreeSpaceFloorStopsGrowthOnly) {
  SlabDiskOptions options = TestOptions(dir_.path());
  options.free_space_floor_bytes = uint64_t{1} << 20;
  Open(options);
  const uint64_t slot_bytes = SlotBytes(8192);
  faults_->free_bytes = static_cast<int64_t>(options.free_space_floor_bytes + 3 * slot_bytes);
  // Room for three slots above the floor, then none.
  std::vector<DiskSlot> slots;
  for (uint64_t n = 0; n < 3; ++n) slots.push_back(MustWrite(MakeBlock(n)));
  faults_->free_bytes = static_cast<int64_t>(options.free_space_floor_bytes + slot_bytes - 1);
  const TestBlock extra = MakeBlock(99);
  const absl::Status refused = tier_->Write(extra.header, extra.payload).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("free-space floor"));
  EXPECT_EQ(tier_->usage().capacity_blocks, 3u);
  tier_->Erase(slots[1]);
  EXPECT_EQ(MustWrite(extra), slots[1]);
}

TEST_F(SlabDiskTierOneTest, NewestCopyOfAKeyOwnsTheCatalogEntry) {
  const SlabDiskOptions options = TestOptions(dir_.path());
  Open(options);
  const TestBlock old_copy = MakeBlock(1);
  const TestBlock new_copy = MakeBlock(1, 8192, 1);
  const DiskSlot old_slot = MustWrite(old_copy);
  const DiskSlot new_slot = MustWrite(new_copy);
  ExpectReads(*tier_, old_slot, old_copy);
  ExpectReads(*tier_, new_slot, new_copy);
  tier_->Erase(old_slot);
  tier_ = nullptr;
  Open(options);
  const std::vector<RecoveredBlock> recovered = tier_->TakeRecovered();
  ASSERT_EQ(recovered.size(), 1u);
  EXPECT_EQ(recovered[0].slot, new_slot);
  EXPECT_EQ(recovered[0].header, new_copy.header);
}

}  // namespace
}  // namespace kvmesh
