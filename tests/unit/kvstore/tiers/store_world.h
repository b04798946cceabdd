// A block store with pools, a disk in memory and a clock, for tests.
#ifndef KVMESH_TESTS_UNIT_KVSTORE_TIERS_STORE_WORLD_H_
#define KVMESH_TESTS_UNIT_KVSTORE_TIERS_STORE_WORLD_H_

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kvstore/tiers/block_store.h"
#include "tests/support/block_content.h"
#include "tests/support/memory_disk_tier.h"
#include "tests/support/set_replay.h"
#include "tests/support/staged_pool.h"

namespace kvmesh {

inline constexpr uint32_t kTestBlockTokens = 16;
// 8 KiB, two leaves of the checksum tree.
inline constexpr BlockLayout kTestLayout = CanonicalLayout(KvFormat::kF32, 2, 2, kTestBlockTokens, 16);

struct StoreShape {
  uint32_t device_slots = 16;
  uint32_t host_slots = 0;   // 0: no host tier
  uint64_t disk_blocks = 0;  // 0: no disk tier
  double max_pinned_fraction = 0.5;
  size_t event_capacity = 1 << 20;
  bool staged_device = false;  // the device's memory is not addressable
  uint32_t max_group = 0;
  uint32_t window_blocks = 0;  // that a boundary of group 1 needs; 0: boundaries are not tracked
  // Of the device; of the tiers below, kUnspecified: the device's.
  KvFormat format = kTestLayout.format;
  KvFormat host_format = KvFormat::kUnspecified;
  KvFormat disk_format = KvFormat::kUnspecified;
};

class StoreWorld {
 public:
  explicit StoreWorld(const StoreShape& shape) : shape_(shape), clock(absl::FromUnixSeconds(1'700'000'000)) {
    if (shape.disk_blocks > 0) disk = std::make_unique<MemoryDiskTier>(shape.disk_blocks);
    Start();
  }

  BlockStore::Options Options() {
    BlockStore::Options options;
    options.device = device.get();
    options.host = host.get();
    options.disk = disk.get();
    options.clock = &clock;
    options.policy = *MakeEvictionPolicyFactory("lru");
    options.max_pinned_fraction = shape_.max_pinned_fraction;
    options.event_capacity = shape_.event_capacity;
    options.block_tokens = kTestBlockTokens;
    options.max_group = shape_.max_group;
    options.boundaries = boundaries.get();
    options.disk_layout = LayoutIn(shape_.disk_format);
    return options;
  }
  // The layout of a tier with that format.
  BlockLayout LayoutIn(KvFormat format) const {
    return *LayoutInFormat(kTestLayout, format == KvFormat::kUnspecified ? shape_.format : format);
  }
  // Ends the process, so to speak: memory is lost, the disk remains.
  void Restart() {
    store.reset();
    Start();
  }

  void Fill(const PrivateBlock& block, const BlockKey& key) {
    std::vector<std::byte> bytes(static_cast<size_t>(kTestLayout.block_bytes));
    FillBlock(key, bytes);
    ASSERT_TRUE(device->Write(block.block(), bytes).ok());
  }
  static BlockStore::SealInfo InfoAt(const RootKey& root, std::span<const BlockKey> keys, uint32_t index,
                                     LossyFormats lossy_formats = LossyFormats()) {
    return {root, keys[index], index == 0 ? RootAsParent(root) : keys[index - 1], index, lossy_formats};
  }
  // Allocates, fills and seals block `index` of a chain.
  absl::StatusOr<BlockPin> SealOne(const RootKey& root, std::span<const BlockKey> keys, uint32_t index,
                                   LossyFormats lossy_formats = LossyFormats()) {
    absl::StatusOr<PrivateBlock> block = store->Allocate();
    if (!block.ok()) return block.status();
    Fill(*block, keys[index]);
    return store->Seal(*std::move(block), InfoAt(root, keys, index, lossy_formats));
  }
  // Seals a chain from block 0 and returns its pins; fails the test when that is refused.
  std::vector<BlockPin> SealChain(const RootKey& root, std::span<const BlockKey> keys,
                                  LossyFormats lossy_formats = LossyFormats()) {
    std::vector<BlockPin> pins;
    for (uint32_t i = 0; i < keys.size(); ++i) {
      absl::StatusOr<BlockPin> pin = SealOne(root, keys, i, lossy_formats);
      EXPECT_TRUE(pin.ok()) << "block " << i << ": " << pin.status();
      if (!pin.ok()) break;
      pins.push_back(*std::move(pin));
    }
    return pins;
  }
  // Puts a chain on the disk, where the next start finds it.
  void PlantOnDisk(const RootKey& root, std::span<const BlockKey> keys) {
    std::vector<std::byte> payload(static_cast<size_t>(kTestLayout.block_bytes));
    for (uint32_t i = 0; i < keys.size(); ++i) {
      FillBlock(keys[i], payload);
      disk->Plant(SealedHeader(InfoAt(root, keys, i), payload), payload);
    }
  }
  // The header that Seal would make.
  BlockHeader SealedHeader(const BlockStore::SealInfo& info, std::span<const std::byte> payload) {
    BlockHeader header;
    header.root = info.root;
    header.key = info.key;
    header.parent = info.parent;
    header.group = info.group;
    header.shard = {0, kTestLayout.layers, 0, kTestLayout.kv_heads};
    header.start_position = uint64_t{info.index} * kTestBlockTokens;
    header.layout = ComputeLayoutFingerprint(kTestLayout);
    header.format = kTestLayout.format;
    header.lossy_formats = info.lossy_formats;
    header.seal_time = clock.Now();
    header.payload_bytes = payload.size();
    header.checksum = ComputeChecksum(header, payload);
    return header;
  }
  // Seals and drops one-block chains of `root`, which push everything unpinned down.
  void Churn(const RootKey& root, uint32_t blocks) {
    for (uint32_t i = 0; i < blocks; ++i) SealChain(root, TestChain(root, 1000 + i, 1));
  }

  BlockStore::Acquired Acquire(std::span<const BlockKey> keys, LossyFormats accepted = LossyFormats()) {
    return store->Acquire(keys, accepted, absl::InfiniteFuture());
  }
  std::array<uint32_t, 3> Lookup(std::span<const BlockKey> keys, LossyFormats accepted = LossyFormats()) {
    return store->Lookup(keys, accepted).blocks;
  }
  // Every byte of every pinned block is that of its key.
  testing::AssertionResult AllHold(std::span<const BlockPin> pins, std::span<const BlockKey> keys) {
    std::vector<std::byte> bytes(static_cast<size_t>(kTestLayout.block_bytes));
    for (size_t i = 0; i < pins.size(); ++i) {
      if (FoundUnder(pins[i].header()) != keys[i])
        return testing::AssertionFailure() << "pin " << i << " is of another block";
      if (const absl::Status read = device->Read(pins[i].block(), bytes); !read.ok()) {
        return testing::AssertionFailure() << "pin " << i << ": " << read;
      }
      if (testing::AssertionResult holds = HoldsBlock(keys[i], bytes); !holds) return holds;
    }
    return testing::AssertionSuccess();
  }
  uint64_t Misses(MissReason reason) const { return store->GetBooks().misses[static_cast<size_t>(reason)]; }

  // All events so far, applied.
  SetReplay Replay() {
    SetReplay replay;
    const absl::StatusOr<std::vector<StoreEvent>> events = store->events().ReadAfter(0, SIZE_MAX);
    EXPECT_TRUE(events.ok()) << events.status();
    for (const StoreEvent& event : *events) replay.Apply(event);
    return replay;
  }
  // The events tell the sets, and the pools hold what the sets say. REQUIRES: no pin, no private block.
  void ExpectBalanced() {
    const BlockStore::Books books = store->GetBooks();
    EXPECT_EQ(books.pinned_blocks, 0u);
    EXPECT_EQ(books.read_pins, 0u);
    EXPECT_EQ(books.private_blocks, 0u);
    const SetReplay replay = Replay();
    for (const BlockSetKind set : kAllSets) {
      EXPECT_EQ(books.digests[static_cast<size_t>(set)], replay.Digest(set)) << "set " << static_cast<int>(set);
    }
    const uint64_t in_device = replay.set(BlockSetKind::kDevice).size();
    const uint64_t in_memory = replay.set(BlockSetKind::kMemory).size();
    EXPECT_EQ(device->used(), in_device);
    const uint64_t host_used = host == nullptr ? 0 : host->used();
    EXPECT_GE(host_used, in_memory - in_device);
    EXPECT_LE(host_used, in_memory);
    if (disk != nullptr) {
      EXPECT_EQ(disk->usage().used_blocks, replay.set(BlockSetKind::kDisk).size());
    }
  }

 private:
  void Start() {
    if (shape_.staged_device) {
      auto pool = std::make_unique<StagedPool>(LayoutIn(shape_.format), shape_.device_slots);
      staged = pool.get();
      device = std::move(pool);
    } else {
      device = *MemoryPool::Create(LayoutIn(shape_.format), shape_.device_slots);
    }
    if (shape_.host_slots > 0) host = *MemoryPool::Create(LayoutIn(shape_.host_format), shape_.host_slots);
    if (shape_.window_blocks > 0) boundaries = std::make_unique<WindowBoundaries>(shape_.window_blocks);
    absl::StatusOr<std::unique_ptr<BlockStore>> created = BlockStore::Create(Options());
    EXPECT_TRUE(created.ok()) << created.status();
    store = *std::move(created);
    if (boundaries != nullptr) boundaries->ReportTo(store->events());
  }

  const StoreShape shape_;

 public:
  ManualClock clock;
  std::unique_ptr<BlockPool> device;
  StagedPool* staged = nullptr;  // `device`, where the shape says so
  std::unique_ptr<BlockPool> host;
  std::unique_ptr<MemoryDiskTier> disk;
  std::unique_ptr<WindowBoundaries> boundaries;
  std::unique_ptr<BlockStore> store;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_KVSTORE_TIERS_STORE_WORLD_H_
