// Parallel writers, readers and erasers against a map of what must be there.
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "disk_test_util.h"

namespace kvmesh {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr int kThreads = 6;
constexpr int kSteps = 400;

class SlabDiskStressTest : public testing::TestWithParam<uint64_t> {};

// One thread's share: keys that no other thread uses, so that its own map is the oracle.
void RunShare(SlabDiskTier& tier, uint64_t seed, uint64_t share, std::map<uint64_t, DiskSlot>& oracle) {
  std::mt19937_64 random(seed * 1000 + share);
  for (int step = 0; step < kSteps; ++step) {
    const uint64_t choice = random() % 10;
    if (choice < 5) {
      const uint64_t n = share * 1'000'000 + random() % 60;
      if (oracle.contains(n)) continue;
      const TestBlock block = MakeBlock(n, kBlockBytes);
      const absl::StatusOr<DiskSlot> slot = tier.Write(block.header, block.payload);
      if (slot.ok()) {
        oracle[n] = *slot;
      } else {
        // All that can be refused here is the byte cap.
        ASSERT_TRUE(absl::IsResourceExhausted(slot.status())) << slot.status();
      }
    } else if (choice < 7 && !oracle.empty()) {
      auto it = oracle.begin();
      std::advance(it, static_cast<ptrdiff_t>(random() % oracle.size()));
      tier.Erase(it->second);
      oracle.erase(it);
    } else {
      std::vector<TestBlock> blocks;
      std::vector<DiskTier::ReadRequest> requests;
      std::vector<std::vector<std::byte>> out(oracle.size(), std::vector<std::byte>(kBlockBytes));
      for (const auto& [n, slot] : oracle) {
        blocks.push_back(MakeBlock(n, kBlockBytes));
        requests.push_back({slot, blocks.back().header, out[requests.size()], absl::UnknownError("")});
      }
      tier.Read(requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        ASSERT_TRUE(requests[i].status.ok()) << requests[i].status;
        ASSERT_TRUE(out[i] == blocks[i].payload);
      }
    }
  }
}

TEST_P(SlabDiskStressTest, MatchesTheOracleAcrossRestarts) {
  const uint64_t seed = GetParam();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  TestDir dir;
  SlabDiskOptions options = TestOptions(dir.path(), kBlockBytes);
  options.byte_cap = 150 * SlotBytes(kBlockBytes);
  std::vector<std::map<uint64_t, DiskSlot>> oracles(kThreads);
  for (int round = 0; round < 3; ++round) {
    SlabDiskEnvironment environment;
    environment.io = round == 1 ? NewThreadFileIo(4) : NewFileIo();
    auto tier = OpenTier(options, std::move(environment));
    ASSERT_NE(tier, nullptr);
    std::map<BlockKey, DiskSlot> recovered;
    for (const RecoveredBlock& block : tier->TakeRecovered()) recovered[block.header.key] = block.slot;
    std::map<BlockKey, DiskSlot> expected;
    for (const auto& oracle : oracles) {
      for (const auto& [n, slot] : oracle) expected[MakeBlock(n, kBlockBytes).header.key] = slot;
    }
    EXPECT_EQ(recovered, expected);
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] { RunShare(*tier, seed + static_cast<uint64_t>(round), t, oracles[t]); });
    }
    for (std::thread& thread : threads) thread.join();
    uint64_t held = 0;
    for (const auto& oracle : oracles) held += oracle.size();
    EXPECT_EQ(tier->usage().used_blocks, held);
    EXPECT_EQ(tier->usage().io_errors, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SlabDiskStressTest, testing::Values(1, 2, 3));

// Several threads write and erase copies of the same few keys.
TEST(SlabDiskSharedKeysTest, CatalogNamesALiveSlotOrNone) {
  TestDir dir;
  const SlabDiskOptions options = TestOptions(dir.path(), kBlockBytes);
  std::vector<std::map<DiskSlot, BlockKey>> held(kThreads);
  {
    auto tier = OpenTier(options);
    ASSERT_NE(tier, nullptr);
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937_64 random(t);
        for (int step = 0; step < kSteps; ++step) {
          if (held[t].size() > 3) {
            tier->Erase(held[t].begin()->first);
            held[t].erase(held[t].begin());
          }
          const TestBlock block = MakeBlock(random() % 4, kBlockBytes, t * kSteps + static_cast<uint64_t>(step));
          const absl::StatusOr<DiskSlot> slot = tier->Write(block.header, block.payload);
          ASSERT_TRUE(slot.ok()) << slot.status();
          held[t][*slot] = block.header.key;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  auto tier = OpenTier(options);
  ASSERT_NE(tier, nullptr);
  const std::vector<RecoveredBlock> recovered = tier->TakeRecovered();
  EXPECT_EQ(tier->usage().recovery_dropped, 0u);
  EXPECT_LE(recovered.size(), 4u);
  for (const RecoveredBlock& block : recovered) {
    bool live = false;
    for (const auto& slots : held) {
      const auto it = slots.find(block.slot);
      live |= it != slots.end() && it->second == block.header.key;
    }
    EXPECT_TRUE(live);
    std::vector<std::byte> out;
    EXPECT_TRUE(ReadBlock(*tier, block.slot, block.header, out).ok());
  }
}

}  // namespace
}  // namespace kvmesh
