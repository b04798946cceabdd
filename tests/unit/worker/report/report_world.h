// One worker's block store over three small tiers, and a reporter of it.
#ifndef KVMESH_TESTS_UNIT_WORKER_REPORT_REPORT_WORLD_H_
#define KVMESH_TESTS_UNIT_WORKER_REPORT_REPORT_WORLD_H_

#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/service/grpc_server.h"
#include "kvstore/tiers/block_store.h"
#include "tests/support/await.h"
#include "tests/support/block_content.h"
#include "tests/support/gate.h"
#include "tests/support/memory_disk_tier.h"
#include "tests/unit/worker/report/fake_coordinator.h"
#include "worker/report/reporter.h"

namespace kvmesh {

inline std::shared_ptr<grpc::Channel> TestChannel(const std::string& address) {
  return MakeChannel(address, grpc::InsecureChannelCredentials());
}

struct TestStoreOptions {
  uint32_t device_slots = 64;
  uint32_t host_slots = 16;
  KvFormat host_format = KvFormat::kF32;
  uint64_t disk_blocks = 64;
  size_t event_capacity = 1 << 16;
};

class TestStore {
 public:
  static constexpr uint32_t kBlockTokens = 4;

  explicit TestStore(const TestStoreOptions& options = {})
      : device(*MemoryPool::Create(Layout(), options.device_slots)),
        host(*MemoryPool::Create(*LayoutInFormat(Layout(), options.host_format), options.host_slots)),
        disk(options.disk_blocks),
        store(*BlockStore::Create({.device = device.get(),
                                   .host = host.get(),
                                   .disk = &disk,
                                   .policy = *MakeEvictionPolicyFactory("lru"),
                                   .max_pinned_fraction = 1,
                                   .event_capacity = options.event_capacity,
                                   .block_tokens = kBlockTokens})) {}

  static BlockLayout Layout() { return CanonicalLayout(KvFormat::kF32, 1, 1, kBlockTokens, 4); }

  // Seals those blocks of the chain that are not held.
  void Seal(const RootKey& root, const std::vector<BlockKey>& keys, LossyFormats lossy = {}) {
    BlockStore::Acquired held = store->Acquire(keys, LossyFormats(~0u), absl::InfiniteFuture());
    for (size_t i = held.pins.size(); i < keys.size(); ++i) {
      absl::StatusOr<PrivateBlock> block = store->Allocate();
      ASSERT_TRUE(block.ok()) << block.status();
      std::vector<std::byte> bytes(static_cast<size_t>(Layout().block_bytes));
      FillBlock(keys[i], bytes);
      ASSERT_TRUE(device->Write(block->block(), bytes).ok());
      const BlockKey parent = i == 0 ? RootAsParent(root) : keys[i - 1];
      auto pin = store->Seal(*std::move(block), {root, keys[i], parent, static_cast<uint32_t>(i), lossy});
      ASSERT_TRUE(pin.ok()) << pin.status();
      held.pins.push_back(*std::move(pin));
    }
  }

  const std::unique_ptr<MemoryPool> device;
  const std::unique_ptr<MemoryPool> host;
  MemoryDiskTier disk;
  const std::unique_ptr<BlockStore> store;
};

// The model's sets are those of the cut.
inline void ExpectEqualSets(const BlockStore::Cut& cut, const SetReplay& model) {
  for (const BlockSetKind kind : kAllSets) {
    SetReplay::Set expected;
    for (const BlockStore::CutBlock& block : cut.blocks) {
      const auto& lossy = block.lossy_formats[static_cast<size_t>(kind)];
      if (lossy) expected[block.key] = {block.parent, *lossy};
    }
    EXPECT_EQ(model.set(kind), expected) << "set " << static_cast<int>(kind);
    EXPECT_EQ(model.Digest(kind), cut.digests[static_cast<size_t>(kind)]);
  }
}

// Appends events, no more at once than the log keeps, until the reporter can send none: the coordinator must not read.
inline void AppendUntilBlocked(BlockStore& store, const Reporter& reporter) {
  constexpr int kRounds = 200;  // far more bytes than the connection's window and buffers hold
  constexpr int kDigests = 500;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t before = store.events().last();
    const uint64_t sent = reporter.counters().events_sent;
    for (int i = 0; i < kDigests; ++i) store.AppendDigests();
    const uint64_t target = sent + store.events().last() - before;
    if (!Await(absl::Seconds(1), [&] { return reporter.counters().events_sent >= target; })) return;
  }
  ADD_FAILURE() << "a stream that nobody reads took " << reporter.counters().events_sent << " events";
}

// Answers what a test sets; a prefetch passes a gate first.
class TestHandler : public CommandHandler {
 public:
  absl::StatusOr<uint64_t> Pin(const v1::PinCommand& command) override { return Record("pin " + command.pin_id()); }
  absl::StatusOr<uint64_t> Unpin(const v1::UnpinCommand& command) override {
    return Record("unpin " + command.pin_id());
  }
  absl::StatusOr<uint64_t> Prefetch(const v1::PrefetchCommand& command) override {
    prefetch_gate.Pass();
    return Record("prefetch " + command.root());
  }
  absl::StatusOr<uint64_t> ClearIdentity(const v1::ClearIdentityCommand& command) override {
    return Record("clear " + command.root());
  }
  absl::StatusOr<uint64_t> Drain(const v1::DrainCommand& command) override {
    return Record(command.draining() ? "drain" : "undrain");
  }

  void SetAnswer(absl::StatusOr<uint64_t> answer) {
    MutexLock lock(mu_);
    answer_ = std::move(answer);
  }
  std::vector<std::string> orders() const {
    MutexLock lock(mu_);
    return orders_;
  }

  Gate prefetch_gate;

 private:
  absl::StatusOr<uint64_t> Record(const std::string& order) {
    MutexLock lock(mu_);
    orders_.push_back(order);
    return answer_;
  }

  mutable Mutex mu_;
  absl::StatusOr<uint64_t> answer_ ABSL_GUARDED_BY(mu_) = uint64_t{7};
  std::vector<std::string> orders_ ABSL_GUARDED_BY(mu_);
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_WORKER_REPORT_REPORT_WORLD_H_
