// Seeded random report streams against the linear model, and lookups beside writers.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/prefix_index/literal_prefix_index.h"
#include "kvstore/block/key_chain.h"
#include "tests/support/gate.h"
#include "tests/unit/coordinator/prefix_index/model_index.h"

namespace kvmesh {
namespace {

constexpr int kSeeds = 200;
constexpr int kSteps = 250;

// Chains that branch: 2 roots, tokens from a small alphabet, up to 24 blocks.
class Stream {
 public:
  explicit Stream(uint32_t seed) : rng_(seed) {
    for (int i = 0; i < 4; ++i) Add();
  }

  void Run() {
    for (int step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) {
      Change();
      if (step % 5 == 0) Compare();
    }
    for (const auto& [slot, sets] : model_.workers) {
      for (const IndexSet set : kAllIndexSets) {
        EXPECT_TRUE(index_.CheckDigest(WorkerSlot(slot), set, sets[IndexOf(set)].Summary()).ok());
        EXPECT_EQ(index_.Count(WorkerSlot(slot), set), sets[IndexOf(set)].blocks().size());
      }
    }
    while (!model_.workers.empty()) Remove(model_.workers.begin()->first);
    EXPECT_EQ(index_.Stats().copies, 0u);
    EXPECT_EQ(index_.Stats().blocks, 0u);
    EXPECT_EQ(index_.Stats().bytes, 0u);
  }

 private:
  uint32_t Uniform(uint32_t n) { return static_cast<uint32_t>(rng_() % n); }
  RootKey Root() {
    RootKey root;
    root.bytes.fill(static_cast<uint8_t>(1 + Uniform(2)));
    return root;
  }
  std::vector<BlockKey> RandomChain(const RootKey& root) {
    std::vector<uint32_t> tokens(1 + Uniform(24));
    for (uint32_t& token : tokens) token = Uniform(8) == 0 ? 1 + Uniform(2) : 0;
    return ComputeBlockKeys(RootAsParent(root), tokens, 1);
  }
  LossyFormats Lossy() { return LossyFormats(Uniform(6) == 0 ? 1u << Uniform(2) : 0u); }
  uint32_t AnySlot() { return std::next(model_.workers.begin(), Uniform(model_.workers.size()))->first; }

  void Add() {
    const auto slot = index_.AddWorker();
    ASSERT_TRUE(slot.ok());
    ASSERT_FALSE(model_.workers.contains(slot->value()));
    model_.workers[slot->value()];
  }
  void Remove(uint32_t slot) {
    index_.RemoveWorker(WorkerSlot(slot));
    model_.workers.erase(slot);
  }

  void Change() {
    const uint32_t slot = AnySlot();
    const IndexSet set = kAllIndexSets[Uniform(kIndexSets)];
    ModelSet& model = model_.workers[slot][IndexOf(set)];
    const uint32_t dice = Uniform(100);
    if (dice < 60) {
      Store(slot, set, model);
    } else if (dice < 92) {
      if (model.blocks().empty()) return;
      const BlockKey key = std::next(model.blocks().begin(), Uniform(model.blocks().size()))->first;
      ASSERT_TRUE(index_.Truncated(WorkerSlot(slot), set, key).ok());
      model.Truncate(key);
    } else if (dice < 95) {
      ASSERT_TRUE(index_.Cleared(WorkerSlot(slot), set).ok());
      model.Clear();
    } else if (dice < 97) {  // restart
      Remove(slot);
      Add();
    } else {
      Resync(slot);
    }
  }

  // From the first block that the set lacks, or from an earlier one, or from one whose parent it lacks.
  void Store(uint32_t slot, IndexSet set, ModelSet& model) {
    const RootKey root = Root();
    const std::vector<BlockKey> chain = RandomChain(root);
    const uint32_t first = Uniform(static_cast<uint32_t>(chain.size()));
    const StoredRun run = {.root = root,
                           .parent = first == 0 ? RootAsParent(root) : chain[first - 1],
                           .first_block = first,
                           .keys = std::span(chain).subspan(first),
                           .lossy_formats = Lossy()};
    const absl::Status status = index_.Stored(WorkerSlot(slot), set, run);
    if (first == 0 || model.Has(run.parent)) {
      ASSERT_TRUE(status.ok()) << status;
      model.Store(run);
    } else {
      ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    }
  }

  // A snapshot of the model itself, parents first, in runs of one block.
  void Resync(uint32_t slot) {
    ASSERT_TRUE(index_.BeginSnapshot(WorkerSlot(slot)).ok());
    SetSummaries expected;
    for (const IndexSet set : kAllIndexSets) {
      const ModelSet& model = model_.workers[slot][IndexOf(set)];
      expected[IndexOf(set)] = model.Summary();
      for (uint8_t n = 1; n <= 2; ++n) {
        RootKey root;
        root.bytes.fill(n);
        std::vector<std::pair<BlockKey, uint32_t>> level = {{RootAsParent(root), 0}};
        while (!level.empty()) {
          const auto [parent, depth] = level.back();
          level.pop_back();
          for (const auto& [key, block] : model.blocks()) {
            if (block.parent != parent) continue;
            const StoredRun run = {.root = root,
                                   .parent = parent,
                                   .first_block = depth,
                                   .keys = {&key, 1},
                                   .lossy_formats = block.lossy_formats};
            ASSERT_TRUE(index_.ApplyToSnapshot(WorkerSlot(slot), set, run).ok());
            level.push_back({key, depth + 1});
          }
        }
      }
    }
    ASSERT_TRUE(index_.CommitSnapshot(WorkerSlot(slot), expected).ok());
  }

  void Compare() {
    const RootKey root = Root();
    const std::vector<BlockKey> chain = RandomChain(root);
    const PrefixQuery query = {.root = root, .keys = chain, .accepted = LossyFormats(Uniform(4))};
    const size_t top_k = 1 + Uniform(6);
    std::vector<PrefixMatch> got;
    index_.Lookup(query, top_k, got);
    const std::vector<PrefixMatch> want = model_.Lookup(query, top_k);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].worker, want[i].worker);
      ASSERT_EQ(got[i].blocks, want[i].blocks);
    }
  }

  std::mt19937 rng_;
  LiteralPrefixIndex index_{PrefixIndexOptions{}};
  ModelIndex model_;
};

TEST(PrefixIndexModelTest, RandomStreamsAgreeWithTheLinearModel) {
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Stream(seed).Run();
    if (HasFailure()) break;
  }
}

TEST(PrefixIndexConcurrencyTest, LookupsBesideWritersSeeOnlyWholeStates) {
  LiteralPrefixIndex index{PrefixIndexOptions{}};
  RootKey root;
  root.bytes.fill(7);
  const std::vector<uint32_t> tokens(256, 5);
  const std::vector<BlockKey> chain = ComputeBlockKeys(RootAsParent(root), tokens, 1);
  const WorkerSlot stable = *index.AddWorker();
  const StoredRun run = {.root = root, .parent = RootAsParent(root), .keys = chain};
  ASSERT_TRUE(index.Stored(stable, IndexSet::kMemory, run).ok());

  std::atomic<bool> stop{false};
  std::atomic<uint64_t> lookups{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      std::vector<PrefixMatch> out;
      while (!stop) {
        index.LookupAll({.root = root, .keys = chain}, out);
        bool stable_found = false;
        for (const PrefixMatch& match : out) {
          if (match.worker == stable) {
            stable_found = true;
            EXPECT_EQ(match.in(IndexSet::kMemory), 256u);
          } else {
            // The other worker holds all or a truncated half.
            EXPECT_TRUE(match.longest() == 256 || match.longest() == 128) << match.longest();
          }
        }
        EXPECT_TRUE(stable_found);
        ++lookups;
      }
    });
  }
  const absl::Time give_up = absl::Now() + kTestPatience;
  for (int round = 0; round < 200 || (lookups < 100 && absl::Now() < give_up); ++round) {
    const WorkerSlot other = *index.AddWorker();
    ASSERT_TRUE(index.Stored(other, IndexSet::kDisk, run).ok());
    ASSERT_TRUE(index.Truncated(other, IndexSet::kDisk, chain[128]).ok());
    index.RemoveWorker(other);
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_GE(lookups, 100u);
}

// Prints the time of a lookup of 8192 keys, with 4 workers that hold all, or shorter prefixes, among other chains.
TEST(PrefixIndexSpeedTest, LookupOf8192Keys) {
  constexpr uint32_t kBlocks = 8192;
  LiteralPrefixIndex index{PrefixIndexOptions{}};
  std::vector<std::vector<BlockKey>> chains;
  RootKey root;
  root.bytes.fill(9);
  for (uint32_t c = 0; c < 16; ++c) {
    std::vector<uint32_t> tokens(kBlocks);
    for (uint32_t i = 0; i < kBlocks; ++i) tokens[i] = i < 64 ? i : i * 31 + c;
    chains.push_back(ComputeBlockKeys(RootAsParent(root), tokens, 1));
  }
  for (uint32_t w = 0; w < 4; ++w) {
    const WorkerSlot worker = *index.AddWorker();
    for (const auto& chain : chains) {
      const std::span<const BlockKey> keys = std::span(chain).first(kBlocks - w * 1777);
      for (const IndexSet set : kAllIndexSets) {
        ASSERT_TRUE(index.Stored(worker, set, {.root = root, .parent = RootAsParent(root), .keys = keys}).ok());
      }
    }
  }
  std::vector<PrefixMatch> out;
  constexpr int kRounds = 4000;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i) index.Lookup({.root = root, .keys = chains[i % 16]}, 4, out);
  const double micros = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  ASSERT_EQ(out.size(), 4u);
  EXPECT_EQ(out[0].in(IndexSet::kDevice), kBlocks);
  EXPECT_EQ(out[3].in(IndexSet::kDisk), kBlocks - 3 * 1777);
  const IndexStats stats = index.Stats();
  std::printf("lookup of %u keys, 4 workers, %llu blocks: %.2f us, %.0f bytes a block\n", kBlocks,
              static_cast<unsigned long long>(stats.blocks), micros / kRounds,
              static_cast<double>(stats.bytes) / static_cast<double>(stats.blocks));
}

}  // namespace
}  // namespace kvmesh
