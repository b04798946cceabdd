// Samples of one prompt: each is a function of prompt, parameters, seed and its number alone, and they share the
// prompt.
#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/worker/generate/generate_node.h"
#include "tests/unit/worker/model/local_runner.h"
#include "worker/generate/sampling.h"

namespace kvmesh {
namespace {

using Tokens = std::vector<uint32_t>;

// One sample by itself, a pass for each token, without a cache.
Tokens LiteralSample(const LlamaModel& model, const GenerateJob& job, uint32_t sample) {
  const testing::PlainPool pool(model.config().CacheLayout(KvFormat::kF32, 16), 32);
  testing::LocalSequence sequence(pool.view(), 0, 512);
  Tokens out, next = job.prompt;
  while (out.size() < job.max_tokens) {
    const Logits logits = testing::MustForward(model, pool.view(), sequence.Next(next));
    next = {SampleToken(logits.row(0), job.sampling, sample, job.prompt.size() + out.size())};
    const Tokens& stops = model.config().eos_ids;
    if (std::find(stops.begin(), stops.end(), next[0]) != stops.end()) break;
    out.push_back(next[0]);
  }
  return out;
}

class ParallelSamplesTest : public ::testing::Test {
 protected:
  // 100 tokens: 6 whole blocks of 16, and a tail of 4.
  GenerateJob Job(const GenerateNode& node, uint32_t samples) const {
    std::string text =
        "In the beginning God created the heaven and the earth. And the earth was without form, and void; and";
    text.resize(100);
    GenerateJob job = node.Job(Bytes(text), 24);
    job.samples = samples;
    job.sampling = {.temperature = 0.9, .top_k = 40, .top_p = 0.95, .seed = 12};
    return job;
  }

  const std::unique_ptr<LlamaModel> model_ = LoadShipped();
};

TEST_F(ParallelSamplesTest, EachSampleIsTheOneThatIsDrawnAlone) {
  GenerateNode node(*model_, 16, 256, 0, 64);
  std::vector<Tokens> want;
  for (uint32_t i = 0; i < 6; ++i) want.push_back(LiteralSample(*model_, Job(node, 1), i));
  EXPECT_NE(want[0], want[1]);
  for (const uint32_t samples : {1u, 2u, 6u}) {
    for (const uint32_t speculate : {0u, 4u}) {
      for (const bool no_cache : {false, true}) {
        GenerateJob job = Job(node, samples);
        job.speculate = speculate;
        job.no_cache = no_cache;
        const GenerateNode::Answer answer = node.Run(job);
        ASSERT_TRUE(answer.status.ok()) << answer.status;
        EXPECT_EQ(answer.samples, std::vector<Tokens>(want.begin(), want.begin() + samples))
            << samples << " samples, speculate " << speculate;
        node.ExpectClean();
      }
    }
  }
  GenerateJob other = Job(node, 1);
  other.sampling.seed = 13;
  EXPECT_NE(node.Run(other).tokens, want[0]);
}

TEST_F(ParallelSamplesTest, WhatElseRunsHasNoInfluence) {
  GenerateNode node(*model_, 16, 512, 0, 32);
  const GenerateNode::Answer want = node.Run(Job(node, 4));
  std::vector<GenerateNode::Answer> answers(3);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < answers.size(); ++i) {
    threads.emplace_back([&, i] {
      GenerateJob job = Job(node, 4);
      job.speculate = static_cast<uint32_t>(i) * 3;
      answers[i] = node.Run(job);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const GenerateNode::Answer& answer : answers) {
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.samples, want.samples);
  }
  node.ExpectClean();
}

TEST_F(ParallelSamplesTest, GreedySamplesAreOneAndTheSame) {
  GenerateNode node(*model_, 16, 256, 0, 64);
  GenerateJob job = Job(node, 5);
  job.sampling.temperature = 0;
  const GenerateNode::Answer answer = node.Run(job);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  const Tokens greedy = node.Generate(job.prompt, job.max_tokens).tokens;
  EXPECT_EQ(answer.samples, std::vector<Tokens>(5, greedy));
  node.ExpectClean();
}

TEST_F(ParallelSamplesTest, ThePromptIsComputedAndHeldOnce) {
  constexpr uint32_t kSamples = 8;
  GenerateNode node(*model_, 16, 256, 0, 64);
  const GenerateJob job = Job(node, kSamples);
  uint32_t reported = 0;
  const GenerateNode::Answer answer = node.Run(job, [&](uint32_t, uint32_t) {
    // All samples have taken their first token, and none has filled a block of its own.
    if (++reported == kSamples + 1) {
      const BlockStore::Books books = node.store->GetBooks();
      EXPECT_EQ(books.pinned_blocks, 6u);
      EXPECT_EQ(books.private_blocks, kSamples);
      EXPECT_EQ(node.device->used(), 6u + kSamples);
    }
    return true;
  });
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.start.computed_tokens, 0u);
  EXPECT_GT(reported, kSamples + 1);
  node.ExpectClean();
  // The next ones find it.
  EXPECT_EQ(node.Run(job).start.computed_tokens, 96u);
}

TEST_F(ParallelSamplesTest, EndsCleanlyWhenTheCallerGoesAndWithoutRoomForTheSamples) {
  GenerateNode node(*model_, 16, 256, 0, 64);
  for (const uint32_t last : {0u, 3u, 11u}) {
    uint32_t reported = 0;
    const GenerateNode::Answer gone = node.Run(Job(node, 6), [&](uint32_t, uint32_t) { return reported++ < last; });
    EXPECT_TRUE(absl::IsCancelled(gone.status)) << gone.status;
    node.ExpectClean();
  }
  GenerateNode tight(*model_, 16, 9, 0, 64);
  EXPECT_TRUE(tight.Run(Job(tight, 1)).status.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(tight.Run(Job(tight, 6)).status));
  tight.ExpectClean();
}

}  // namespace
}  // namespace kvmesh
