// The whole local path: greedy generation through resume, append, attend and seal, cold against resumed, bit for bit.
#include "worker/generate/generator.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kernels/kv_format.h"
#include "kernels/variant.h"
#include "tests/unit/worker/generate/generate_node.h"

namespace kvmesh {
namespace {

TEST(GeneratorTest, GreedyFromBosGivesTheGoldenIdsOfStories260k) {
  const std::string dir = SourceDir() + "/../shared/data/stories260k";
  auto model = LlamaModel::Load(dir);
  if (absl::IsNotFound(model.status())) GTEST_SKIP() << dir << " is missing";
  ASSERT_TRUE(model.ok()) << model.status();
  const nlohmann::json golden = nlohmann::json::parse(std::ifstream(dir + "/golden.json"));
  const std::vector<uint32_t> ids = golden.at("greedy_ids_from_bos");
  GenerateNode node(**model, 16, 64, 0, 256);
  const std::vector<uint32_t> want(ids.begin() + 1, ids.end());
  EXPECT_EQ(node.Generate({ids[0]}, static_cast<uint32_t>(want.size())).tokens, want);
  // Resumed in the middle of its own text, it goes on the same way.
  for (const size_t cut : {2, 15, 16, 17, 32, 100, 128}) {
    const std::vector<uint32_t> prompt(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(cut));
    const auto answer = node.Generate(prompt, 20);
    EXPECT_EQ(answer.tokens, std::vector<uint32_t>(ids.begin() + static_cast<ptrdiff_t>(cut),
                                                   ids.begin() + static_cast<ptrdiff_t>(cut) + 20));
    EXPECT_EQ(answer.start.hits[0], cut / 16 * 16);
  }
}

class GeneratorFormatTest : public testing::TestWithParam<KvFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, GeneratorFormatTest, testing::ValuesIn(kKvFormats),
                         [](const auto& info) { return std::string(KvFormatName(info.param)); });

TEST_P(GeneratorFormatTest, EverySplitOfAPromptGivesTheSameAnswerAndTheSameSealedBytes) {
  const std::unique_ptr<LlamaModel> model = LoadShipped();
  const std::vector<uint32_t> prompt =
      Bytes("And he said unto them, Go ye into all the world, and speak of what ye have seen there.");
  for (const int32_t block_tokens : {1, 8, 16}) {
    SCOPED_TRACE(block_tokens);
    GenerateNode cold(*model, block_tokens, 512, 0, 256, GetParam());
    const auto want = cold.Generate(prompt, 12);
    EXPECT_EQ(cold.Generate(prompt, 12, /*no_cache=*/true).tokens, want.tokens);
    const auto want_bytes = cold.SealedBytes(prompt);
    ASSERT_EQ(want_bytes.size(), prompt.size() / static_cast<size_t>(block_tokens));
    for (size_t split = 1; split <= prompt.size(); ++split) {
      SCOPED_TRACE(split);
      GenerateNode node(*model, block_tokens, 512, 0, static_cast<uint32_t>(1 + split % 7), GetParam());
      node.Generate({prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(split)}, 1);
      const auto resumed = node.Generate(prompt, 12);
      EXPECT_EQ(resumed.tokens, want.tokens);
      EXPECT_EQ(resumed.start.hits[0], split / static_cast<size_t>(block_tokens) * static_cast<size_t>(block_tokens));
      EXPECT_EQ(node.SealedBytes(prompt), want_bytes);
    }
  }
}

TEST_P(GeneratorFormatTest, FullyCachedPromptComputesItsLastTokenOnly) {
  const std::unique_ptr<LlamaModel> model = LoadShipped();
  GenerateNode node(*model, 16, 64, 0, 256, GetParam());
  const std::vector<uint32_t> prompt = Bytes("In the beginning was the word. !");
  ASSERT_EQ(prompt.size(), 32u);
  const auto cold = node.Generate(prompt, 8);
  EXPECT_EQ(cold.start.computed_tokens, 0u);
  const auto warm = node.Generate(prompt, 8);
  EXPECT_EQ(warm.start.hits[0], 32u);
  EXPECT_EQ(warm.start.computed_tokens, 31u);
  EXPECT_EQ(warm.tokens, cold.tokens);
}

TEST(GeneratorTest, LengthsAroundABlockNeverGiveAnotherToken) {
  const std::unique_ptr<LlamaModel> model = LoadShipped();
  const std::vector<uint32_t> text = Bytes("The Lord is my shepherd; I shall not want. He maketh me to lie down");
  GenerateNode node(*model, 16, 256, 0, 5);
  for (const size_t length : {1, 15, 16, 17, 31, 32, 33, 48}) {
    SCOPED_TRACE(length);
    const std::vector<uint32_t> prompt(text.begin(), text.begin() + static_cast<ptrdiff_t>(length));
    const auto plain = node.Generate(prompt, 6, /*no_cache=*/true);
    EXPECT_EQ(node.Generate(prompt, 6).tokens, plain.tokens);
    EXPECT_EQ(node.Generate(prompt, 6).tokens, plain.tokens);
  }
}

TEST_P(GeneratorFormatTest, HostTierGivesBackTheSameBits) {
  const std::unique_ptr<LlamaModel> model = LoadShipped(2);
  // 12 device blocks hold one prompt of 8 and little else, so each round promotes from the host.
  GenerateNode node(*model, 16, 12, 64, 64, GetParam());
  std::mt19937 random(7);
  std::vector<std::vector<uint32_t>> prompts(6);
  std::vector<std::vector<uint32_t>> want;
  for (auto& prompt : prompts) {
    for (int i = 0; i < 130; ++i) prompt.push_back('a' + random() % 26);
    want.push_back(node.Generate(prompt, 4, /*no_cache=*/true).tokens);
  }
  uint64_t host_tokens = 0;
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto answer = node.Generate(prompts[i], 4);
      EXPECT_EQ(answer.tokens, want[i]);
      host_tokens += answer.start.hits[static_cast<size_t>(HitSource::kHost)];
    }
  }
  EXPECT_GT(host_tokens, 1000u);
  const BlockStore::Books books = node.store->GetBooks();
  EXPECT_EQ(books.pinned_blocks, 0u);
  EXPECT_EQ(books.private_blocks, 0u);
}

TEST(GeneratorTest, NumericsNameWhatDecidesBits) {
  const std::unique_ptr<LlamaModel> model = LoadShipped();
  const BlockLayout layout = model->config().CacheLayout(KvFormat::kInt8, 16);
  const std::string numerics = ModelIdentity(*model, layout).numerics;
  EXPECT_EQ(numerics.substr(0, 13), "fp32/kv-int8/");
  const std::string kernels = std::string(KernelVariantName(CurrentVariant())) + ".2";
  EXPECT_EQ(numerics.substr(numerics.rfind('/') + 1), kernels);
}

TEST(GeneratorTest, RefusesWhatTheModelCannotTake) {
  const std::unique_ptr<LlamaModel> model = LoadShipped();
  GenerateNode node(*model, 16, 64, 0, 256);
  const GenerateEvents ignore{[](const GenerateStart&) { return true; }, [](uint32_t, uint32_t) { return true; }};
  GenerateJob job{.root = node.root, .max_tokens = 1, .deadline = absl::InfiniteFuture()};
  EXPECT_TRUE(absl::IsInvalidArgument(node.generator->Run(job, ignore)));
  job.prompt = {256};
  EXPECT_TRUE(absl::IsInvalidArgument(node.generator->Run(job, ignore)));
  job.prompt = {1};
  job.max_tokens = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(node.generator->Run(job, ignore)));
  job.max_tokens = 8192;
  EXPECT_TRUE(absl::IsInvalidArgument(node.generator->Run(job, ignore)));
  job.max_tokens = 1;
  job.samples = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(node.generator->Run(job, ignore)));
  job.samples = kMaxSamples + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(node.generator->Run(job, ignore)));
  job.samples = 1;
  job.speculate = kMaxSpeculate + 1;
  EXPECT_TRUE(absl::IsInvalidArgument(node.generator->Run(job, ignore)));
  job.speculate = 0;
  job.sampling.top_p = 2;
  EXPECT_TRUE(absl::IsInvalidArgument(node.generator->Run(job, ignore)));
  job.sampling.top_p = 0;
  job.prompt.assign(16 * 65, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(node.generator->Run(job, ignore)));
  EXPECT_EQ(node.store->GetBooks().private_blocks, 0u);
}

}  // namespace
}  // namespace kvmesh
