// Nothing that makes K/V non-interchangeable is ever crossed, and the edges of a prompt are counted rightly.
#include <gtest/gtest.h>

#include <numeric>

#include "absl/time/clock.h"
#include "kvstore/wire/wire.h"
#include "tests/support/await.h"
#include "tests/system/conversation.h"
#include "tests/system/engine_calls.h"

namespace kvmesh {
namespace {

constexpr uint32_t kBlockTokens = 16;

// Identities that differ from the first, and from each other, in one field.
std::vector<CacheIdentity> DistinctIdentities() {
  CacheIdentity base;
  base.tenant = "a";
  base.model = "m";
  base.model_revision = "1";
  base.numerics = "fp32";
  base.block_tokens = kBlockTokens;
  std::vector<CacheIdentity> all(12, base);
  all[1].tenant = "b";
  all[2].cache_salt = "salt";
  all[3].cache_salt = "a";  // the tenant's text in another field
  all[4].adapter = "lora";
  all[5].adapter = "lora";
  all[5].adapter_revision = "2";
  all[6].model_revision = "2";
  all[7].numerics = "bf16";
  all[8].rope = RopeIdentity{.theta = 10000, .rotary_dim = 16};
  all[9].extra["kind"] = "x";
  all[10].attention_policy = "sinks=4,window=64";
  all[11].model = "ma";
  all[11].tenant = "";
  return all;
}

std::vector<uint32_t> Tokens(size_t count) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 1000);
  return tokens;
}

class IsolationTest : public testing::Test {
 protected:
  void SetUp() override {
    cluster_ = std::make_unique<ProcessCluster>(
        ClusterConfig{.workers = {{.model = false}, {.model = false}}, .secret = "of the cluster"});
    ASSERT_TRUE(cluster_->Start());
  }
  uint64_t Held(size_t worker, const CacheIdentity& identity, const std::vector<uint32_t>& tokens) {
    return GetBlocks(*cluster_->Stub(worker), identity, tokens).blocks;
  }
  std::unique_ptr<ProcessCluster> cluster_;
};

TEST_F(IsolationTest, BlocksPutUnderOneIdentityAreFoundUnderNoOther) {
  const std::vector<CacheIdentity> identities = DistinctIdentities();
  const std::vector<uint32_t> tokens = Tokens(4 * kBlockTokens);
  for (size_t i = 0; i < identities.size(); ++i) {
    const auto stub = cluster_->Stub(0);
    EXPECT_EQ(Held(0, identities[i], tokens), 0u) << "identity " << i << " sees an earlier one's blocks";
    const auto opened = OpenSequence(*stub, identities[i], tokens);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(opened->computed_tokens(), 0u) << "identity " << i;
    ASSERT_TRUE(CloseSequence(*stub, opened->sequence_id()).ok());
    const auto route = cluster_->client().Route(identities[i], tokens, {});
    ASSERT_TRUE(route.ok()) << route.status();
    EXPECT_EQ(route->matched_tokens(), 0u) << "identity " << i;

    const std::string payload(4 * kEngineBlockBytes, static_cast<char>('a' + i));
    const auto put = PutBlocks(*stub, identities[i], tokens, 0, payload);
    ASSERT_TRUE(put.ok()) << put.status();
    EXPECT_EQ(put->stored_blocks(), 4u);
    const BlocksRead read = GetBlocks(*stub, identities[i], tokens);
    EXPECT_EQ(read.blocks, 4u);
    EXPECT_EQ(read.payload, payload);
    // The coordinator knows of chains alone; a stream has none.
    if (!identities[i].attention_policy.empty()) continue;
    ASSERT_TRUE(Await(absl::Seconds(5), [&] {
      const auto now = cluster_->client().Route(identities[i], tokens, {});
      return now.ok() && now->matched_tokens() == tokens.size();
    }));
  }
  // And none has overwritten another's.
  for (size_t i = 0; i < identities.size(); ++i) {
    const BlocksRead read = GetBlocks(*cluster_->Stub(0), identities[i], tokens);
    EXPECT_EQ(read.payload, std::string(4 * kEngineBlockBytes, static_cast<char>('a' + i))) << "identity " << i;
  }
  EXPECT_TRUE(cluster_->BooksAreClean());
  EXPECT_TRUE(cluster_->IndexEqualsWorkers());
}

TEST_F(IsolationTest, AnotherIdentitysSourcesGiveNothing) {
  const std::vector<CacheIdentity> identities = DistinctIdentities();
  const std::vector<uint32_t> tokens = Tokens(4 * kBlockTokens);
  ASSERT_TRUE(PutBlocks(*cluster_->Stub(0), identities[0], tokens, 0, std::string(4 * kEngineBlockBytes, 'a')).ok());
  for (size_t i = 1; i < identities.size(); ++i) {
    v1::RouteResponse route;
    ASSERT_TRUE(Await(absl::Seconds(5), [&] {
      const auto answer = cluster_->client().Route(identities[0], tokens, {.worker_id = cluster_->worker_id(1)});
      if (answer.ok()) route = *answer;
      return route.sources_size() > 0;
    }));
    const auto opened = OpenSequence(*cluster_->Stub(1), identities[i], tokens, &route);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(opened->computed_tokens(), 0u) << "identity " << i << " resumed from another one's ticket";
    ASSERT_TRUE(CloseSequence(*cluster_->Stub(1), opened->sequence_id()).ok());
  }
  EXPECT_TRUE(cluster_->BooksAreClean());
}

TEST_F(IsolationTest, OtherBlockSizeIsRefused) {
  CacheIdentity identity = DistinctIdentities()[0];
  identity.block_tokens = 8;
  const auto opened = OpenSequence(*cluster_->Stub(0), identity, Tokens(32));
  EXPECT_TRUE(absl::IsInvalidArgument(opened.status())) << opened.status();
  EXPECT_NE(opened.status().message().find("block_tokens"), absl::string_view::npos) << opened.status();
}

TEST_F(IsolationTest, PromptsAtTheEdgesOfABlockKeepTheLastTokenToCompute) {
  const CacheIdentity identity = DistinctIdentities()[0];
  ASSERT_TRUE(PutBlocks(*cluster_->Stub(0), identity, Tokens(64), 0, std::string(4 * kEngineBlockBytes, 'a')).ok());
  const std::pair<size_t, uint64_t> edges[] = {{1, 0},   {15, 0},  {16, 15}, {17, 16}, {31, 16},
                                               {32, 31}, {33, 32}, {63, 48}, {64, 63}, {65, 64}};
  for (const auto& [length, computed] : edges) {
    const auto opened = OpenSequence(*cluster_->Stub(0), identity, Tokens(length));
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(opened->computed_tokens(), computed) << length << " tokens";
    EXPECT_EQ(opened->hits().device(), length / kBlockTokens * kBlockTokens) << length << " tokens";
    ASSERT_TRUE(CloseSequence(*cluster_->Stub(0), opened->sequence_id()).ok());
  }
}

TEST(GenerateIsolationTest, SaltsAndTenantsShareNothingAndFullyCachedPromptsAnswerRightly) {
  ProcessCluster cluster({.workers = {WorkerConfig{}}});
  ASSERT_TRUE(cluster.Start());
  std::vector<Prompt> prompts = MakePrompts(7, 1, 1);
  const std::vector<uint32_t> text = prompts[0].tokens;
  for (const size_t length : {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{320}, size_t{321}}) {
    Prompt& prompt = prompts.emplace_back();
    prompt.tokens.assign(text.begin(), text.begin() + static_cast<ptrdiff_t>(length));
  }
  ASSERT_TRUE(ComputeAnswers(cluster, prompts));
  const std::pair<const char*, const char*> owners[] = {{"", ""}, {"a", ""}, {"", "a"}, {"b", ""}, {"a", "b"}};
  for (const auto& [tenant, salt] : owners) {
    for (size_t i = prompts.size(); i-- > 0;) {
      const Prompt& prompt = prompts[i];
      for (const bool cached : {false, true}) {
        ClusterGenerateRequest request{
            .tokens = prompt.tokens, .max_tokens = kAnswerTokens, .tenant = tenant, .cache_salt = salt};
        const auto result = GenerateOnCluster(cluster.client(), request);
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_EQ(result->tokens, prompt.answer) << prompt.tokens.size() << " tokens";
        const uint64_t hits = result->hits.device();
        // The longest prompt comes first; shorter ones are its prefixes.
        const uint64_t full = prompt.tokens.size() / 16 * 16;
        if (cached) {
          EXPECT_EQ(hits, full);
          EXPECT_EQ(result->computed_tokens, std::min<uint64_t>(full, prompt.tokens.size() - 1));
        } else if (prompt.tokens.size() == 321) {
          EXPECT_EQ(hits, 0u) << "tenant '" << tenant << "' salt '" << salt << "' sees another's blocks";
        }
      }
    }
  }
  EXPECT_TRUE(cluster.BooksAreClean());
  EXPECT_TRUE(cluster.IndexEqualsWorkers());
}

}  // namespace
}  // namespace kvmesh
