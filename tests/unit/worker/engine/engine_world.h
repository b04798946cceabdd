// A worker's engine over a real block store and a scripted transport, for tests.
#ifndef KVMESH_TESTS_UNIT_WORKER_ENGINE_ENGINE_WORLD_H_
#define KVMESH_TESTS_UNIT_WORKER_ENGINE_ENGINE_WORLD_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/fake_transport.h"
#include "tests/unit/kvstore/tiers/store_world.h"
#include "worker/engine/observer.h"
#include "worker/engine/peer_fetcher.h"
#include "worker/engine/resumer.h"

namespace kvmesh {

// Keeps what it is told. Thread safe.
class RecordingObserver : public EngineObserver {
 public:
  struct FetchSeen {
    std::string peer;
    std::string transport;
    absl::StatusCode code;
    uint64_t bytes;
  };

  void OnResume(uint64_t requested, const HitTokensBySource& hits, absl::Duration) override {
    MutexLock lock(mu_);
    requested_ += requested;
    for (size_t i = 0; i < kHitSources; ++i) hits_[i] += hits[i];
  }
  void OnLossyHits(const HitTokensBySource& hits) override {
    MutexLock lock(mu_);
    for (size_t i = 0; i < kHitSources; ++i) lossy_hits_[i] += hits[i];
  }
  void OnMiss(absl::string_view reason, uint64_t tokens) override {
    MutexLock lock(mu_);
    misses_[std::string(reason)] += tokens;
  }
  void OnFetch(absl::string_view peer, absl::string_view transport, const absl::Status& outcome, uint64_t bytes,
               absl::Duration) override {
    MutexLock lock(mu_);
    fetches_.push_back({std::string(peer), std::string(transport), outcome.code(), bytes});
  }

  uint64_t requested() const {
    MutexLock lock(mu_);
    return requested_;
  }
  HitTokensBySource hits() const {
    MutexLock lock(mu_);
    return hits_;
  }
  HitTokensBySource lossy_hits() const {
    MutexLock lock(mu_);
    return lossy_hits_;
  }
  std::map<std::string, uint64_t> misses() const {
    MutexLock lock(mu_);
    return misses_;
  }
  std::vector<FetchSeen> fetches() const {
    MutexLock lock(mu_);
    return fetches_;
  }

 private:
  mutable Mutex mu_;
  uint64_t requested_ ABSL_GUARDED_BY(mu_) = 0;
  HitTokensBySource hits_ ABSL_GUARDED_BY(mu_){};
  HitTokensBySource lossy_hits_ ABSL_GUARDED_BY(mu_){};
  std::map<std::string, uint64_t> misses_ ABSL_GUARDED_BY(mu_);
  std::vector<FetchSeen> fetches_ ABSL_GUARDED_BY(mu_);
};

// A result with the chain's pins in a row.
struct Resumed : ResumeResult {
  explicit Resumed(ResumeResult result) : ResumeResult(std::move(result)), pins(TakePins()) {}
  std::vector<BlockPin> pins;
};

class EngineWorld : public StoreWorld {
 public:
  static constexpr absl::Duration kMaxClaimIdle = absl::Seconds(5);

  explicit EngineWorld(const StoreShape& shape)
      : StoreWorld(shape),
        fetcher(std::make_unique<PeerFetcher>(std::vector<Transport*>{&transport}, clock, observer)),
        resumer(*store, *fetcher, clock, observer, kMaxClaimIdle) {}

  // Resumes the chain of the store, whatever the request's groups.
  Resumed Resume(ResumeRequest request) {
    const CacheGroup chain = ChainGroup(*store);
    request.groups = {&chain, 1};
    return Resumed(resumer.Resume(request));
  }
  // Blocks [first, first + count) of a chain as a good peer sends them.
  std::vector<FakeTransport::SentBlock> Blocks(const RootKey& root, std::span<const BlockKey> keys, uint32_t first,
                                               uint32_t count, uint32_t group = 0) {
    std::vector<FakeTransport::SentBlock> blocks;
    for (uint32_t i = first; i < first + count; ++i) {
      std::vector<std::byte> bytes(static_cast<size_t>(kTestLayout.block_bytes));
      FillBlock(ComputeGroupKey(keys[i], group), bytes);
      BlockStore::SealInfo info = InfoAt(root, keys, i);
      info.group = group;
      const BlockHeader header = SealedHeader(info, bytes);
      blocks.push_back({header, std::move(bytes)});
    }
    return blocks;
  }
  // A peer that brings `script` for a span.
  PeerSource Offer(uint32_t first, uint32_t count, FakeTransport::Script script) {
    const std::string ticket = absl::StrCat("ticket-", ++tickets_);
    transport.Offer(ticket, std::move(script));
    return {.first_block = first,
            .block_count = count,
            .peer_id = absl::StrCat("peer-", tickets_),
            .peer_address = "peer:1",
            .ticket = ticket};
  }
  PeerSource OfferGood(const RootKey& root, std::span<const BlockKey> keys, uint32_t first, uint32_t count) {
    return Offer(first, count, {.blocks = Blocks(root, keys, first, count)});
  }
  // None of the keys is findable, in any set.
  testing::AssertionResult NoneHeld(std::span<const BlockKey> keys) {
    for (size_t i = 0; i < keys.size(); ++i) {
      for (const uint32_t held : Lookup(keys.subspan(i, 1))) {
        if (held != 0) return testing::AssertionFailure() << "block " << i << " is held";
      }
    }
    return testing::AssertionSuccess();
  }

  FakeTransport transport;
  RecordingObserver observer;
  std::unique_ptr<PeerFetcher> fetcher;
  Resumer resumer;

 private:
  int tickets_ = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_WORKER_ENGINE_ENGINE_WORLD_H_
