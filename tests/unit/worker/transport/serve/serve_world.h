// Workers of one test, without a transport: a pool, a block store and a block server.
#ifndef KVMESH_TESTS_UNIT_WORKER_TRANSPORT_SERVE_SERVE_WORLD_H_
#define KVMESH_TESTS_UNIT_WORKER_TRANSPORT_SERVE_SERVE_WORLD_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvmesh/v1/worker.pb.h"
#include "kvstore/block/secrets.h"
#include "kvstore/block/ticket.h"
#include "kvstore/tiers/block_store.h"
#include "tests/support/block_content.h"
#include "worker/transport/serve/block_server.h"

namespace kvmesh {

inline const TicketKey kTestTicketKey = DeriveTicketKey("cluster secret");
inline constexpr uint32_t kTestBlockTokens = 4;

// 4 tokens of 2 layers and 2 heads.
inline BlockLayout TestLayout(int32_t head_dim = 16) {
  return CanonicalLayout(KvFormat::kF32, 2, 2, kTestBlockTokens, head_dim);
}

inline Incarnation TestIncarnation(uint8_t number) {
  Incarnation out;
  out.bytes.fill(number);
  return out;
}

struct TestWorkerOptions {
  std::string id = "sender";
  uint8_t incarnation = 1;
  BlockLayout layout = TestLayout();
  uint32_t device_slots = 64;
  uint32_t host_slots = 0;
  std::optional<KvFormat> format_below;  // of host and disk; none: the device's
  DiskTier* disk = nullptr;
  const Clock* clock = &Clock::Real();
  size_t max_serves = 32;
  size_t max_used_tickets = 1 << 16;
};

// One worker's blocks and block server.
class TestWorker {
 public:
  explicit TestWorker(const TestWorkerOptions& options = {})
      : id(options.id),
        incarnation(TestIncarnation(options.incarnation)),
        device(*MemoryPool::Create(options.layout, options.device_slots)),
        below(*LayoutInFormat(options.layout, options.format_below.value_or(options.layout.format))),
        host(options.host_slots == 0 ? nullptr : *MemoryPool::Create(below, options.host_slots)),
        store(*BlockStore::Create({.device = device.get(),
                                   .host = host.get(),
                                   .disk = options.disk,
                                   .disk_layout = below,
                                   .clock = options.clock,
                                   .policy = *MakeEvictionPolicyFactory("lru"),
                                   .max_pinned_fraction = 1,
                                   .block_tokens = kTestBlockTokens,
                                   .max_group = 1})),
        server(BlockServer::Options{.stores = {store.get(), store.get()},
                                    .worker_id = id,
                                    .incarnation = incarnation,
                                    .ticket_key = kTestTicketKey,
                                    .clock = options.clock,
                                    .max_serves = options.max_serves,
                                    .max_used_tickets = options.max_used_tickets}) {}

  // Seals and publishes the chain, with the content of block_content.h.
  void Seal(const RootKey& root, const std::vector<BlockKey>& keys, LossyFormats lossy = {}, uint32_t group = 0) {
    std::vector<std::byte> bytes(block_bytes());
    BlockKey parent = RootAsParent(root);
    BlockPin parent_pin;
    for (uint32_t i = 0; i < keys.size(); ++i) {
      absl::StatusOr<PrivateBlock> block = store->Allocate();
      ASSERT_TRUE(block.ok()) << block.status();
      FillBlock(ComputeGroupKey(keys[i], group), bytes);
      ASSERT_TRUE(device->Write(block->block(), bytes).ok());
      auto pin = store->Seal(*std::move(block), {root, keys[i], parent, i, lossy, group});
      ASSERT_TRUE(pin.ok()) << pin.status();
      parent_pin = *std::move(pin);
      parent = keys[i];
    }
  }

  size_t block_bytes() const { return static_cast<size_t>(device->layout().block_bytes); }

  const std::string id;
  const Incarnation incarnation;
  const std::unique_ptr<MemoryPool> device;
  const BlockLayout below;
  const std::unique_ptr<MemoryPool> host;
  const std::unique_ptr<BlockStore> store;
  BlockServer server;
};

// A ticket for `keys[first]` to the end of `keys` from worker "sender" to worker "receiver". Each has a fresh id.
inline Ticket TestTicket(const RootKey& root, const std::vector<BlockKey>& keys, uint32_t first = 0,
                         absl::Time now = absl::Now()) {
  static std::atomic<uint64_t> next{1};
  Ticket ticket;
  const uint64_t number = next++;
  std::memcpy(ticket.id.bytes.data(), &number, sizeof(number));
  ticket.sender = "sender";
  ticket.sender_incarnation = TestIncarnation(1);
  ticket.receiver = "receiver";
  ticket.receiver_incarnation = TestIncarnation(2);
  ticket.root = root;
  ticket.last_key = keys.back();
  ticket.first_block = first;
  ticket.block_count = static_cast<uint32_t>(keys.size()) - first;
  ticket.expiry = now + absl::Seconds(20);
  return ticket;
}

// The request that a receiver presents a ticket with.
inline v1::FetchBlocksRequest TestRequest(const std::string& sealed_ticket, const LayoutFingerprint& layout) {
  v1::FetchBlocksRequest request;
  request.set_ticket(sealed_ticket);
  request.set_receiver_id("receiver");
  request.set_receiver_incarnation(TestIncarnation(2).ToString());
  request.set_layout_fingerprint(layout.ToString());
  return request;
}

// Targets of one transfer.
class Targets {
 public:
  Targets(size_t blocks, size_t block_bytes) : bytes_(blocks, std::vector<std::byte>(block_bytes)) {}
  std::vector<std::span<std::byte>> spans() { return {bytes_.begin(), bytes_.end()}; }
  std::span<const std::byte> block(size_t i) const { return bytes_[i]; }
  void Fill(std::byte value) {
    for (std::vector<std::byte>& block : bytes_) std::fill(block.begin(), block.end(), value);
  }
  bool AllEqual(std::byte value) const {
    return std::all_of(bytes_.begin(), bytes_.end(), [value](const std::vector<std::byte>& block) {
      return std::all_of(block.begin(), block.end(), [value](std::byte b) { return b == value; });
    });
  }

 private:
  std::vector<std::vector<std::byte>> bytes_;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_WORKER_TRANSPORT_SERVE_SERVE_WORLD_H_
