#include "kvstore/pool/block_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/block_content.h"

namespace kvmesh {
namespace {

constexpr BlockLayout kLayout = CanonicalLayout(KvFormat::kBf16, 3, 1, 4, 10);  // 480 bytes, not a multiple of 64
constexpr uint32_t kSlots = 8;

std::unique_ptr<MemoryPool> MakePool(uint32_t slots = kSlots) {
  absl::StatusOr<std::unique_ptr<MemoryPool>> pool = MemoryPool::Create(kLayout, slots);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

TEST(BlockPoolTest, AllocatesEverySlotOnceThenNone) {
  const auto pool = MakePool();
  std::set<BlockId> blocks;
  for (uint32_t i = 0; i < kSlots; ++i) {
    const std::optional<BlockId> block = pool->Allocate();
    ASSERT_TRUE(block.has_value());
    EXPECT_LT(block->value(), kSlots);
    EXPECT_TRUE(blocks.insert(*block).second);
    EXPECT_EQ(pool->used(), i + 1);
  }
  EXPECT_EQ(pool->Allocate(), std::nullopt);
  EXPECT_EQ(pool->used(), kSlots);
}

TEST(BlockPoolTest, FreedSlotIsAllocatedAgain) {
  const auto pool = MakePool();
  for (uint32_t i = 0; i < kSlots; ++i) ASSERT_TRUE(pool->Allocate());
  pool->Free(BlockId(3));
  EXPECT_EQ(pool->used(), kSlots - 1);
  EXPECT_EQ(pool->Allocate(), BlockId(3));
  EXPECT_EQ(pool->Allocate(), std::nullopt);
}

TEST(BlockPoolDeathTest, FreeingAFreeSlotAborts) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto pool = MakePool();
  const BlockId block = *pool->Allocate();
  pool->Free(block);
  EXPECT_DEATH(pool->Free(block), "freed a slot that is not allocated");
  EXPECT_DEATH(pool->Free(BlockId(kSlots)), "freed a slot that is not allocated");
}

TEST(BlockPoolTest, SlotsAreAlignedAndDoNotOverlap) {
  const auto pool = MakePool();
  std::vector<BlockKey> keys = TestChain(TestRoot(1), 1, kSlots);
  std::vector<std::byte> content(static_cast<size_t>(kLayout.block_bytes));
  for (uint32_t i = 0; i < kSlots; ++i) {
    const BlockId block = *pool->Allocate();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pool->bytes(block).data()) % 64, 0u);
    FillBlock(keys[block.value()], content);
    ASSERT_TRUE(pool->Write(block, content).ok());
  }
  for (uint32_t i = 0; i < kSlots; ++i) {
    ASSERT_TRUE(pool->Read(BlockId(i), content).ok());
    EXPECT_TRUE(HoldsBlock(keys[i], content));
    EXPECT_EQ(pool->bytes(BlockId(i)).size(), content.size());
    EXPECT_TRUE(HoldsBlock(keys[i], pool->bytes(BlockId(i))));
    EXPECT_EQ(pool->view().At(i, 0, 0, 0, 0), pool->bytes(BlockId(i)).data());
  }
}

TEST(BlockPoolTest, CreateNamesWhatIsWrong) {
  EXPECT_EQ(MemoryPool::Create(BlockLayout{}, 1).status().code(), absl::StatusCode::kInvalidArgument);
  BlockLayout large = kLayout;
  large.block_bytes = kMaxBlockBytes + 1;
  EXPECT_EQ(MemoryPool::Create(large, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MemoryPool::Create(kLayout, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MemoryPool::Create(kLayout, (1u << 31) + 1).status().code(), absl::StatusCode::kInvalidArgument);
  large.block_bytes = kMaxBlockBytes;
  EXPECT_EQ(MemoryPool::Create(large, 1u << 31).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(BlockPoolTest, ThreadsNeverShareASlot) {
  constexpr int kThreads = 4;
  const auto pool = MakePool();
  std::vector<std::atomic<int>> owners(kSlots);
  std::atomic<uint64_t> shared = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        std::vector<BlockId> mine;
        while (mine.size() < 3) {
          const std::optional<BlockId> block = pool->Allocate();
          if (!block) break;
          shared += owners[block->value()].fetch_add(1) != 0 ? 1 : 0;
          mine.push_back(*block);
        }
        for (const BlockId block : mine) {
          owners[block.value()].fetch_sub(1);
          pool->Free(block);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(shared, 0u);
  EXPECT_EQ(pool->used(), 0u);
}

}  // namespace
}  // namespace kvmesh
