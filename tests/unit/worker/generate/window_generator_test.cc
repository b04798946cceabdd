// Models with windows, and bounded streaming: resumed equals uncached at every boundary, over a store for each layer
// group, whatever is left of the window's blocks.
#include <memory>
#include <random>

#include "gtest/gtest.h"
#include "tests/support/null_observer.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/worker/model/tiny_model.h"
#include "worker/generate/generator.h"

namespace kvmesh {
namespace {

using nlohmann::json;
using testing::NamedTensor;
using testing::RandomSafetensors;
using testing::TinyConfig;
using testing::TinyTensors;
using testing::WriteFile;

constexpr uint32_t kBlockTokens = 16;
constexpr uint32_t kSeed = 31;

// A worker's engine over one store for each layer group.
class Node {
 public:
  Node(const LlamaModel& model, uint32_t device_blocks, uint32_t host_blocks, uint32_t chunk) {
    std::vector<CacheGroup> groups;
    for (size_t i = 0; i < model.config().groups.size(); ++i) {
      const LayerGroup& group = model.config().groups[i];
      const BlockLayout layout = model.config().CacheLayout(KvFormat::kF32, kBlockTokens, i);
      pools_.push_back(*MemoryPool::Create(layout, device_blocks));
      pools_.push_back(host_blocks == 0 ? nullptr : *MemoryPool::Create(layout, host_blocks));
      stores_.push_back(*BlockStore::Create({.device = pools_[2 * i].get(),
                                             .host = pools_[2 * i + 1].get(),
                                             .policy = *MakeEvictionPolicyFactory("lru"),
                                             .max_pinned_fraction = 1.0,
                                             .block_tokens = kBlockTokens,
                                             .max_group = 1}));
      groups.push_back({.store = stores_.back().get(),
                        .number = group.window > 0 ? 1u : 0u,
                        .window = group.window,
                        .layers = group.layers});
    }
    fetcher_ = std::make_unique<PeerFetcher>(std::vector<Transport*>{}, Clock::Real(), observer_);
    resumer_ = std::make_unique<Resumer>(*stores_[0], *fetcher_, Clock::Real(), observer_, absl::Seconds(5));
    generator_ = std::make_unique<Generator>(model, std::move(groups), *resumer_, Clock::Real(),
                                             Generator::Options{.prefill_chunk = chunk});
  }

  struct Answer {
    GenerateStart start;
    std::vector<uint32_t> tokens;
    uint64_t drafted = 0;
  };
  Answer Generate(const std::vector<uint32_t>& prompt, const StreamingPolicy& policy, bool no_cache = false,
                  uint32_t speculate = 0) {
    CacheIdentity identity;
    identity.block_tokens = kBlockTokens;
    identity.attention_policy = policy.streams() ? "sinks=4,window=8" : "";
    Answer answer;
    const GenerateJob job{.root = DeriveRoot(DeriveTenantSecret("", ""), ComputeFingerprint(identity)),
                          .policy = policy,
                          .prompt = prompt,
                          .max_tokens = 12,
                          .speculate = speculate,
                          .no_cache = no_cache,
                          .deadline = absl::Now() + absl::Seconds(120)};
    const absl::Status status =
        generator_->Run(job, {.on_start =
                                  [&](const GenerateStart& start) {
                                    answer.start = start;
                                    return true;
                                  },
                              .on_token =
                                  [&](uint32_t, uint32_t token) {
                                    answer.tokens.push_back(token);
                                    return true;
                                  },
                              .on_drafts = [&](uint64_t proposed, uint64_t) { answer.drafted += proposed; }});
    EXPECT_TRUE(status.ok()) << status;
    return answer;
  }
  void ExpectClean() {
    for (const auto& store : stores_) {
      EXPECT_EQ(store->GetBooks().pinned_blocks, 0u);
      EXPECT_EQ(store->GetBooks().private_blocks, 0u);
    }
  }
  BlockStore& store(size_t i) { return *stores_[i]; }

 private:
  NullObserver observer_;
  std::vector<std::unique_ptr<MemoryPool>> pools_;  // device and host of each group
  std::vector<std::unique_ptr<BlockStore>> stores_;
  std::unique_ptr<PeerFetcher> fetcher_;
  std::unique_ptr<Resumer> resumer_;
  std::unique_ptr<Generator> generator_;
};

// A pattern of layers, with a window.
struct Pattern {
  std::string name;
  int window;
};

class WindowGeneratorTest : public ::testing::TestWithParam<Pattern> {
 protected:
  void SetUp() override {
    json config = TinyConfig();
    std::vector<NamedTensor> tensors = TinyTensors();
    if (GetParam().name == "streaming") {
      policy_ = {.sinks = 4, .window = GetParam().window};
    } else {
      config["sliding_window"] = GetParam().window;
    }
    if (GetParam().name == "mixed" || GetParam().name == "sinks") {
      config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
    }
    if (GetParam().name == "sinks") {
      config["attention_sinks"] = true;
      for (int layer = 0; layer < 3; ++layer) {
        tensors.push_back({"model.layers." + std::to_string(layer) + ".self_attn.sinks", {6}});
      }
    }
    WriteFile(dir_ / "config.json", config.dump());
    WriteFile(dir_ / "model.safetensors", RandomSafetensors(tensors, kSeed));
    model_ = *LlamaModel::Load(dir_.path());
    std::mt19937 random(kSeed);
    for (int i = 0; i < 210; ++i) text_.push_back(random() % 67);
  }
  std::vector<uint32_t> Prompt(size_t length) const {
    return {text_.begin(), text_.begin() + static_cast<ptrdiff_t>(length)};
  }

  TempDir dir_;
  std::unique_ptr<LlamaModel> model_;
  StreamingPolicy policy_;
  std::vector<uint32_t> text_;
};

std::vector<Pattern> Patterns(const std::vector<std::string>& names, const std::vector<int>& windows) {
  std::vector<Pattern> out;
  for (const std::string& name : names) {
    for (const int window : windows) out.push_back({name, window});
  }
  return out;
}
std::string NameOf(const ::testing::TestParamInfo<Pattern>& info) {
  return info.param.name + std::to_string(info.param.window);
}
INSTANTIATE_TEST_SUITE_P(Patterns, WindowGeneratorTest,
                         ::testing::ValuesIn(Patterns({"all", "mixed", "sinks", "streaming"},
                                                      {1, 16, 17, 18, 33, 128, 129})),
                         NameOf);

// Everything is still held: the longest boundary is found, full hits included.
TEST_P(WindowGeneratorTest, ResumesAtTheLongestBoundary) {
  for (const size_t length : {15, 16, 17, 31, 32, 33, 48, 128, 129, 144, 160, 161, 193}) {
    SCOPED_TRACE(length);
    Node node(*model_, 128, 0, 37);
    const Node::Answer plain = node.Generate(Prompt(length), policy_, /*no_cache=*/true);
    EXPECT_EQ(plain.start.computed_tokens, 0u);
    EXPECT_EQ(node.Generate(Prompt(length), policy_).tokens, plain.tokens);
    const Node::Answer warm = node.Generate(Prompt(length), policy_);
    EXPECT_EQ(warm.tokens, plain.tokens);
    EXPECT_EQ(warm.start.hits[0], length / 16 * 16);
    EXPECT_EQ(warm.start.computed_tokens, std::min(length / 16 * 16, length - 1));
    node.ExpectClean();
  }
}

// Blocks that dropped drafts alone had no use for any more are still there.
TEST_P(WindowGeneratorTest, DraftsLeaveNoTrace) {
  for (const size_t length : {40, 141, 160}) {
    SCOPED_TRACE(length);
    std::vector<uint32_t> prompt;
    while (prompt.size() < length) prompt.push_back(text_[prompt.size() % 7]);
    Node plain(*model_, 128, 0, 64);
    const std::vector<uint32_t> want = plain.Generate(prompt, policy_).tokens;
    for (const bool no_cache : {false, true}) {
      for (const uint32_t speculate : {1u, 4u, 16u}) {
        Node node(*model_, 128, 0, 64);
        const Node::Answer answer = node.Generate(prompt, policy_, no_cache, speculate);
        EXPECT_EQ(answer.tokens, want) << "speculate " << speculate;
        // What sees only itself repeats nothing.
        EXPECT_TRUE(answer.drafted > 0 || GetParam().window == 1);
        for (size_t i = 0; i < model_->config().groups.size() && !no_cache; ++i) {
          EXPECT_EQ(node.store(i).GetBooks().digests, plain.store(i).GetBooks().digests);
        }
        node.ExpectClean();
      }
    }
  }
}

// A longer prompt goes on from each boundary of a shorter one.
TEST_P(WindowGeneratorTest, LongerPromptsGoOnFromShorterOnes) {
  const std::vector<uint32_t> whole = Prompt(203);
  Node cold(*model_, 128, 0, 64);
  const std::vector<uint32_t> want = cold.Generate(whole, policy_, /*no_cache=*/true).tokens;
  for (size_t cached = 16; cached <= 192; cached += 16) {
    SCOPED_TRACE(cached);
    Node node(*model_, 128, 0, 64);
    node.Generate(Prompt(cached + 1), policy_);
    const Node::Answer resumed = node.Generate(whole, policy_);
    EXPECT_EQ(resumed.tokens, want);
    EXPECT_EQ(resumed.start.computed_tokens, cached);
    node.ExpectClean();
  }
}

// Blocks of the window's store are lost here and there: a lower boundary or none, and never another token.
TEST_P(WindowGeneratorTest, LostBlocksCostHitsOnly) {
  const Node::Answer plain = Node(*model_, 128, 0, 64).Generate(Prompt(200), policy_, /*no_cache=*/true);
  uint64_t hits = 0, rounds = 0;
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    // Pools hardly larger than a prompt, so that other prompts push blocks out.
    Node node(*model_, 16 + random() % 8, random() % 2 == 0 ? 0 : 8, 64);
    for (int round = 0; round < 4; ++round, ++rounds) {
      std::vector<uint32_t> other(16 * (1 + random() % 6) + 1);
      for (uint32_t& token : other) token = random() % 67;
      node.Generate(other, policy_);
      const Node::Answer answer = node.Generate(Prompt(200), policy_);
      EXPECT_EQ(answer.tokens, plain.tokens);
      hits += answer.start.hits[0] + answer.start.hits[1];
    }
    node.ExpectClean();
  }
  EXPECT_GT(hits, 0u);
  EXPECT_LT(hits, rounds * 192);
}

// Models without full attention, whose prompts are much longer than their windows.
class BoundedGeneratorTest : public WindowGeneratorTest {};
INSTANTIATE_TEST_SUITE_P(Patterns, BoundedGeneratorTest,
                         ::testing::ValuesIn(Patterns({"all", "streaming"}, {1, 16, 17, 18, 33})), NameOf);

// A sequence holds its window and its sinks, however long it is.
TEST_P(BoundedGeneratorTest, WindowsHoldConstantMemory) {
  // Window, new tokens and sinks, each cut by block ends; 13 full blocks do not fit.
  Node node(*model_, 8, 0, 16);
  const Node::Answer small = node.Generate(Prompt(205), policy_, /*no_cache=*/true);
  EXPECT_EQ(small.tokens, Node(*model_, 128, 0, 64).Generate(Prompt(205), policy_, /*no_cache=*/true).tokens);
  node.ExpectClean();
}

}  // namespace
}  // namespace kvmesh
