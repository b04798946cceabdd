#include "kvstore/tiers/disk/slab_disk_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "disk_test_util.h"

namespace kvmesh {
namespace {

void ExpectRefused(const SlabDiskOptions& options, const std::string& field) {
  const absl::Status status = ValidateSlabDiskOptions(options);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::StartsWith(field + ":"));
  EXPECT_TRUE(absl::IsInvalidArgument(SlabDiskTier::Open(options).status()));
}

TEST(SlabDiskOptionsTest, EveryFieldIsChecked) {
  TestDir dir;
  const SlabDiskOptions good = TestOptions(dir.path());
  EXPECT_TRUE(ValidateSlabDiskOptions(good).ok());
  SlabDiskOptions bad = good;
  bad.directory.clear();
  ExpectRefused(bad, "directory");
  for (const std::string& id : {std::string(), std::string("a/b"), std::string("a\n"), std::string(129, 'a')}) {
    bad = good;
    bad.disk_id = id;
    ExpectRefused(bad, "disk_id");
  }
  for (const uint64_t bytes : {uint64_t{0}, static_cast<uint64_t>(kMaxBlockBytes) + 1}) {
    bad = good;
    bad.block_bytes = bytes;
    ExpectRefused(bad, "block_bytes");
  }
  bad = good;
  bad.byte_cap = SlotBytes(good.block_bytes) - 1;
  ExpectRefused(bad, "byte_cap");
  for (const uint32_t slots : {0u, kMaxSlotsPerSlab + 1}) {
    bad = good;
    bad.slots_per_slab = slots;
    ExpectRefused(bad, "slots_per_slab");
  }
}

TEST(SlabDiskOptionsTest, SlotsAreWholePages) {
  EXPECT_EQ(SlotBytes(1), 8192u);
  EXPECT_EQ(SlotBytes(4096), 8192u);
  EXPECT_EQ(SlotBytes(4097), 12288u);
  EXPECT_EQ(SlotBytes(65536), 69632u);
}

}  // namespace
}  // namespace kvmesh
