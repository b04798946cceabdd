// One worker's engine without servers or peers, and the models to run in it, for tests of generation.
#ifndef KVMESH_TESTS_UNIT_WORKER_GENERATE_GENERATE_NODE_H_
#define KVMESH_TESTS_UNIT_WORKER_GENERATE_GENERATE_NODE_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvstore/block/key_chain.h"
#include "tests/support/null_observer.h"
#include "worker/generate/generator.h"

namespace kvmesh {

inline std::string SourceDir() {
  const char* dir = std::getenv("KVMESH_SOURCE_DIR");
  return dir == nullptr ? "." : dir;
}

struct GenerateNode {
  GenerateNode(const LlamaModel& model, int32_t block_tokens, uint32_t device_blocks, uint32_t host_blocks,
               uint32_t chunk, KvFormat format = KvFormat::kF32) {
    const BlockLayout layout = model.config().CacheLayout(format, block_tokens);
    device = *MemoryPool::Create(layout, device_blocks);
    if (host_blocks > 0) host = *MemoryPool::Create(layout, host_blocks);
    store = *BlockStore::Create({.device = device.get(),
                                 .host = host.get(),
                                 .policy = *MakeEvictionPolicyFactory("lru"),
                                 .max_pinned_fraction = 1.0,
                                 .block_tokens = static_cast<uint32_t>(block_tokens)});
    fetcher = std::make_unique<PeerFetcher>(std::vector<Transport*>{}, Clock::Real(), observer);
    resumer = std::make_unique<Resumer>(*store, *fetcher, Clock::Real(), observer, absl::Seconds(5));
    generator = std::make_unique<Generator>(model, std::vector{ChainGroup(*store)}, *resumer, Clock::Real(),
                                            Generator::Options{.prefill_chunk = chunk});
    root = DeriveRoot(DeriveTenantSecret("", ""), ComputeFingerprint(ModelIdentity(model, layout)));
  }

  struct Answer {
    absl::Status status;
    GenerateStart start;
    std::vector<uint32_t> tokens;                // of sample 0
    std::vector<std::vector<uint32_t>> samples;  // of all
    uint64_t drafted = 0;
    uint64_t accepted = 0;
  };
  // A job with the fields that a node knows filled in.
  GenerateJob Job(const std::vector<uint32_t>& prompt, uint32_t max_tokens, bool no_cache = false) const {
    return {.root = root,
            .prompt = prompt,
            .max_tokens = max_tokens,
            .no_cache = no_cache,
            .deadline = absl::Now() + absl::Seconds(120)};
  }
  // `on_token` may end the run, or look at the node.
  Answer Run(const GenerateJob& job, const std::function<bool(uint32_t, uint32_t)>& on_token = nullptr) {
    Answer answer;
    answer.samples.resize(job.samples);
    GenerateEvents events;
    events.on_start = [&](const GenerateStart& start) {
      answer.start = start;
      return true;
    };
    events.on_token = [&](uint32_t sample, uint32_t token) {
      answer.samples[sample].push_back(token);
      return on_token == nullptr || on_token(sample, token);
    };
    events.on_drafts = [&](uint64_t proposed, uint64_t accepted) {
      answer.drafted += proposed;
      answer.accepted += accepted;
    };
    answer.status = generator->Run(job, events);
    if (!answer.samples.empty()) answer.tokens = answer.samples[0];
    return answer;
  }
  Answer Generate(const std::vector<uint32_t>& prompt, uint32_t max_tokens, bool no_cache = false) {
    Answer answer = Run(Job(prompt, max_tokens, no_cache));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    return answer;
  }
  void ExpectClean() const {
    EXPECT_EQ(store->GetBooks().pinned_blocks, 0u);
    EXPECT_EQ(store->GetBooks().private_blocks, 0u);
  }

  // The sealed bytes of the leading full blocks of `tokens`.
  std::vector<std::vector<std::byte>> SealedBytes(const std::vector<uint32_t>& tokens) {
    const uint32_t block_tokens = static_cast<uint32_t>(device->layout().block_tokens);
    const std::vector<BlockKey> keys = ComputeBlockKeys(RootAsParent(root), tokens, block_tokens);
    const BlockStore::Acquired held = store->Acquire(keys, LossyFormats(), absl::InfiniteFuture());
    std::vector<std::vector<std::byte>> out;
    for (const BlockPin& pin : held.pins) {
      const std::span<const std::byte> bytes = device->bytes(pin.block());
      out.emplace_back(bytes.begin(), bytes.end());
    }
    return out;
  }

  NullObserver observer;
  std::unique_ptr<MemoryPool> device;
  std::unique_ptr<MemoryPool> host;
  std::unique_ptr<BlockStore> store;
  std::unique_ptr<PeerFetcher> fetcher;
  std::unique_ptr<Resumer> resumer;
  std::unique_ptr<Generator> generator;
  RootKey root;
};

inline std::unique_ptr<LlamaModel> LoadShipped(int32_t threads = 1) {
  auto model = LlamaModel::Load(SourceDir() + "/deploy/model", {.threads = threads});
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

inline std::vector<uint32_t> Bytes(const std::string& text) { return std::vector<uint32_t>(text.begin(), text.end()); }

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_WORKER_GENERATE_GENERATE_NODE_H_
