// Workers whose pools hold K/V in a quantized format: what a peer computed, and what disk kept, answers as an uncached
// run of that format does, and sealed blocks have the same bytes wherever they were computed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/process_cluster.h"
#include "tests/system/conversation.h"
#include "tests/system/engine_calls.h"

namespace kvmesh {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSeed = 5;

class KvFormatTest : public testing::TestWithParam<const char*> {
 protected:
  static WorkerConfig Config() { return {.disk = true, .extra = {"--kv-format", GetParam()}}; }

  void SetUp() override {
    ASSERT_TRUE(cluster_.Start());
    ASSERT_TRUE(ComputeAnswers(cluster_, prompts_));
  }
  // The hits of `prompt` on worker `i`, whose answer is the uncached one.
  v1::HitTokens Ask(size_t i, const Prompt& prompt, const std::string& salt = "") {
    const auto answer = kvmesh::Ask(cluster_, prompt, {.salt = salt, .worker_id = cluster_.worker_id(i)});
    EXPECT_TRUE(answer.ok()) << answer.status() << ", seed " << kSeed;
    EXPECT_TRUE(cluster_.IndexEqualsWorkers());
    return answer.ok() ? answer->hits : v1::HitTokens();
  }

  ProcessCluster cluster_{ClusterConfig{.workers = {Config(), Config()}}};
  std::vector<Prompt> prompts_ = MakePrompts(kSeed, 1, 3);
};

INSTANTIATE_TEST_SUITE_P(Formats, KvFormatTest, testing::Values("fp8", "int8", "int4"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(KvFormatTest, PrefixesFromAPeerAndFromDiskAnswerAsUncachedRuns) {
  auto identity = ClusterModelIdentity(cluster_.client());
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_THAT(identity->numerics, HasSubstr(absl::StrCat("/kv-", GetParam(), "/")));

  EXPECT_EQ(Ask(0, prompts_[0]).peer(), 0u);
  const uint64_t blocks = prompts_[0].tokens.size() / 16;
  EXPECT_EQ(Ask(1, prompts_[0]).peer(), blocks * 16);
  EXPECT_EQ(Ask(1, prompts_[0]).device(), blocks * 16);
  EXPECT_EQ(Ask(1, prompts_[1]).device(), blocks * 16);  // and goes on from there
  EXPECT_EQ(Ask(1, prompts_[2], "alone").peer(), 0u);    // computed here, unlike the first

  const BlocksRead first = GetBlocks(*cluster_.Stub(0), *identity, prompts_[0].tokens);
  const BlocksRead pulled = GetBlocks(*cluster_.Stub(1), *identity, prompts_[0].tokens);
  const BlocksRead longer = GetBlocks(*cluster_.Stub(1), *identity, prompts_[1].tokens);
  identity->cache_salt = "alone";
  const BlocksRead alone = GetBlocks(*cluster_.Stub(1), *identity, prompts_[2].tokens);
  EXPECT_EQ(first.blocks, blocks);
  EXPECT_EQ(pulled.payload, first.payload);
  EXPECT_EQ(longer.blocks, prompts_[1].tokens.size() / 16);
  EXPECT_EQ(alone.blocks, prompts_[2].tokens.size() / 16);
  EXPECT_EQ(alone.payload.substr(0, longer.payload.size()), longer.payload);

  ASSERT_TRUE(cluster_.RestartGently(1));
  ASSERT_TRUE(cluster_.AwaitReady(1));
  EXPECT_EQ(Ask(1, prompts_[1]).disk(), prompts_[1].tokens.size() / 16 * 16);
  EXPECT_TRUE(cluster_.BooksAreClean());
}

}  // namespace
}  // namespace kvmesh
