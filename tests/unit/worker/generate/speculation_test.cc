// Speculative decoding gives what plain greedy decoding gives: token for token, and sealed block for sealed block.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "tests/support/temp_dir.h"
#include "tests/unit/worker/generate/generate_node.h"

namespace kvmesh {
namespace {

using nlohmann::json;
using Tokens = std::vector<uint32_t>;

std::string StoriesDir() { return SourceDir() + "/../shared/data/stories260k"; }

// Runs the prompt with and without drafts on nodes of their own and compares all that is left of it.
class Comparison {
 public:
  explicit Comparison(const LlamaModel& model) : model_(model) {}

  // The plain answer.
  Tokens Expect(const Tokens& prompt, uint32_t max_tokens, int32_t block_tokens, const std::vector<uint32_t>& drafts) {
    GenerateNode plain(model_, block_tokens, 512, 0, 64);
    const Tokens want = plain.Generate(prompt, max_tokens).tokens;
    Tokens all = prompt;
    all.insert(all.end(), want.begin(), want.end());
    const auto want_bytes = plain.SealedBytes(all);
    for (const uint32_t speculate : drafts) {
      SCOPED_TRACE(testing::Message() << "speculate " << speculate << ", block_tokens " << block_tokens
                                      << ", max_tokens " << max_tokens << ", prompt of " << prompt.size());
      GenerateNode node(model_, block_tokens, 512, 0, 64);
      GenerateJob job = node.Job(prompt, max_tokens);
      job.speculate = speculate;
      const GenerateNode::Answer answer = node.Run(job);
      EXPECT_TRUE(answer.status.ok()) << answer.status;
      EXPECT_EQ(answer.tokens, want);
      EXPECT_TRUE(node.SealedBytes(all) == want_bytes) << "other bytes";
      // The same keys are findable, no other.
      EXPECT_EQ(node.store->GetBooks().digests, plain.store->GetBooks().digests);
      EXPECT_EQ(node.device->used(), plain.device->used());
      node.ExpectClean();
      drafted += answer.drafted;
      accepted += answer.accepted;
    }
    return want;
  }

  uint64_t drafted = 0;
  uint64_t accepted = 0;

 private:
  const LlamaModel& model_;
};

// The model with other ids that end a text.
std::unique_ptr<LlamaModel> WithStops(const std::string& dir, const Tokens& stops) {
  const TempDir folder;
  json config = json::parse(std::ifstream(dir + "/config.json"));
  config["eos_token_id"] = stops;
  std::ofstream(folder / "config.json") << config.dump();
  std::filesystem::create_symlink(std::filesystem::absolute(dir + "/model.safetensors"), folder / "model.safetensors");
  auto model = LlamaModel::Load(folder.path());
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// Pieces of a few words, again and again.
Tokens Repetitive(std::mt19937_64& random, const std::vector<Tokens>& words, size_t size) {
  Tokens out;
  while (out.size() < size) {
    const Tokens& word = words[random() % words.size()];
    out.insert(out.end(), word.begin(), word.end());
  }
  out.resize(size);
  return out;
}

const std::vector<uint32_t> kEachSpeculate = {1, 2, 3, 4, 5, 6, 7, 8, kMaxSpeculate};

TEST(SpeculationTest, EqualsPlainDecodingOfTheShippedModel) {
  const std::unique_ptr<LlamaModel> model = LoadShipped();
  Comparison comparison(*model);
  comparison.Expect(
      Bytes("And the LORD spake unto Moses, saying, Speak unto the children of Israel, saying, And the LORD "
            "spake unto Moses, saying, Sp"),
      48, 16, kEachSpeculate);
  comparison.Expect(Bytes("a"), 40, 16, {4});
  comparison.Expect(Bytes("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), 40, 8, {1, 4, 8});
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const std::vector<Tokens> words = {Bytes("the son of "), Bytes("And he begat "), Bytes("Noah "), Bytes("king, ")};
    const int32_t sizes[] = {1, 8, 16};
    comparison.Expect(Repetitive(random, words, 1 + random() % 100), static_cast<uint32_t>(1 + random() % 40),
                      sizes[random() % 3], {static_cast<uint32_t>(1 + random() % 8)});
  }
  std::printf("%lu of %lu drafts accepted\n", comparison.accepted, comparison.drafted);
  EXPECT_GT(comparison.accepted, 100u);
  EXPECT_GT(comparison.drafted, comparison.accepted);
}

TEST(SpeculationTest, EqualsTheGoldenIdsOfStories260k) {
  auto model = LlamaModel::Load(StoriesDir());
  if (absl::IsNotFound(model.status())) GTEST_SKIP() << StoriesDir() << " is missing";
  ASSERT_TRUE(model.ok()) << model.status();
  const Tokens ids = json::parse(std::ifstream(StoriesDir() + "/golden.json")).at("greedy_ids_from_bos");
  Comparison comparison(**model);
  const Tokens want = comparison.Expect({ids[0]}, static_cast<uint32_t>(ids.size() - 1), 16, kEachSpeculate);
  EXPECT_EQ(want, Tokens(ids.begin() + 1, ids.end()));
  // A text that has been told twice already.
  Tokens twice(ids.begin(), ids.begin() + 90);
  twice.insert(twice.end(), ids.begin() + 1, ids.begin() + 60);
  comparison.Expect(twice, 64, 8, kEachSpeculate);
  std::printf("%lu of %lu drafts accepted\n", comparison.accepted, comparison.drafted);
  EXPECT_GT(comparison.accepted, 100u);
  EXPECT_GT(comparison.drafted, comparison.accepted);
}

TEST(SpeculationTest, MaxTokensMayEndInsideADraftAndAtEachPlaceOfABlock) {
  const std::unique_ptr<LlamaModel> model = LoadShipped();
  Comparison comparison(*model);
  const Tokens text = Bytes("the king of Judah, the king of Judah, the king of Ju");
  for (uint32_t max_tokens = 1; max_tokens <= 20; ++max_tokens) {
    comparison.Expect({text.begin(), text.end() - max_tokens % 5}, max_tokens, 8, {8, 3});
  }
  EXPECT_GT(comparison.accepted, 50u);
}

TEST(SpeculationTest, AnEndOfSequenceInsideADraftEndsTheText) {
  const std::string dir = SourceDir() + "/deploy/model";
  const std::unique_ptr<LlamaModel> model = LoadShipped();
  const Tokens prompt = Bytes("the king of Judah, and the king of Israel, the king of Judah, and the k");
  GenerateNode node(*model, 8, 64, 0, 64);
  GenerateJob job = node.Job(prompt, 30);
  job.speculate = 8;
  const GenerateNode::Answer whole = node.Run(job);
  ASSERT_GT(whole.accepted, 10u);
  for (const uint32_t stop : std::set<uint32_t>(whole.tokens.begin(), whole.tokens.end())) {
    SCOPED_TRACE(stop);
    const std::unique_ptr<LlamaModel> stopping = WithStops(dir, {stop});
    Comparison comparison(*stopping);
    const Tokens answer = comparison.Expect(prompt, 30, 8, {1, 5, 8});
    EXPECT_EQ(answer, Tokens(whole.tokens.begin(), std::find(whole.tokens.begin(), whole.tokens.end(), stop)));
  }
}

TEST(SpeculationTest, DraftsThatFindNoRoomAreGivenUp) {
  const std::unique_ptr<LlamaModel> model = LoadShipped();
  const Tokens prompt = Bytes("the king of Judah, the king of Judah, the king of");
  GenerateNode plain(*model, 1, 512, 0, 64);
  const Tokens want = plain.Generate(prompt, 20).tokens;
  const uint32_t stop = want[6];
  const auto end = std::find(want.begin(), want.end(), stop);
  const std::unique_ptr<LlamaModel> stopping = WithStops(SourceDir() + "/deploy/model", {stop});
  // Room for what a plain run computes, and no block more.
  const auto blocks = static_cast<uint32_t>(prompt.size() + static_cast<size_t>(end - want.begin()));
  GenerateNode tight(*stopping, 1, blocks, 0, 64);
  GenerateJob job = tight.Job(prompt, 20);
  job.speculate = 8;
  const GenerateNode::Answer answer = tight.Run(job);
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.tokens, Tokens(want.begin(), end));
  tight.ExpectClean();
}

}  // namespace
}  // namespace kvmesh
