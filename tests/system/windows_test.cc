// Workers that run models with sliding windows, and sequences that stream: every answer equals its uncached run,
// whatever tier gives the prefix back and whatever part of it is left.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "client/generate.h"
#include "grpcpp/grpcpp.h"
#include "kvmesh/v1/coordinator.grpc.pb.h"
#include "kvstore/service/grpc_status.h"
#include "kvstore/wire/wire.h"
#include "tests/support/await.h"
#include "tests/support/process_cluster.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/worker/model/tiny_model.h"

namespace kvmesh {
namespace {

using nlohmann::json;

constexpr uint32_t kSeed = 41;

struct Answer {
  uint64_t computed_tokens = 0;
  v1::HitTokens hits;
  std::vector<uint32_t> tokens;
};

class WindowsTest : public ::testing::Test {
 protected:
  // A random model of 3 layers over bytes.
  void WriteModel(const json& changes) {
    json config = testing::TinyConfig();
    config["vocab_size"] = 256;
    for (const auto& [name, value] : changes.items()) config[name] = value;
    std::vector<testing::NamedTensor> tensors = testing::TinyTensors();
    for (testing::NamedTensor& tensor : tensors) {
      if (tensor.shape[0] == 67) tensor.shape[0] = 256;
    }
    testing::WriteFile(model_ / "config.json", config.dump());
    testing::WriteFile(model_ / "model.safetensors", testing::RandomSafetensors(tensors, kSeed));
  }
  void Start(size_t workers) {
    WorkerConfig worker{.device_blocks = 24, .host_blocks = 28, .disk = true};
    worker.model_dir = model_.path();
    cluster_ = std::make_unique<ProcessCluster>(ClusterConfig{.workers = std::vector<WorkerConfig>(workers, worker)});
    ASSERT_TRUE(cluster_->Start());
  }
  absl::StatusOr<Answer> Generate(size_t worker, const std::vector<uint32_t>& prompt, bool no_cache,
                                  const std::string& policy = "") {
    v1::GenerateRequest request;
    request.mutable_tokens()->Add(prompt.begin(), prompt.end());
    request.set_max_tokens(8);
    request.set_no_cache(no_cache);
    request.set_attention_policy(policy);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto stub = cluster_->Stub(worker);
    const auto reader = stub->Generate(&context, request);
    Answer answer;
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
      if (response.has_start()) {
        answer.computed_tokens = response.start().computed_tokens();
        answer.hits = response.start().hits();
      } else if (response.has_token()) {
        answer.tokens.push_back(response.token().id());
      }
    }
    const absl::Status status = FromGrpcStatus(reader->Finish());
    if (!status.ok()) return status;
    return answer;
  }
  static std::vector<uint32_t> Prompt(uint32_t branch, size_t length) {
    std::mt19937 random(kSeed + branch);
    std::vector<uint32_t> out(length);
    for (uint32_t& token : out) token = random() % 256;
    return out;
  }
  // Prompts of several branches and lengths, on one worker, until each tier has given tokens; then after a restart.
  void ExpectEqualFromEveryTier(const std::string& policy) {
    v1::HitTokens hits;
    for (int round = 0; round < 3; ++round) {
      // A turn over all pushes everything down to disk; the way back meets the newest in the host.
      for (const uint32_t branch : {0u, 1u, 2u, 3u, 4u, 5u, 3u, 4u, 2u}) {
        for (const size_t length : {40, 64, 97, 144}) {
          const absl::StatusOr<Answer> plain = Generate(0, Prompt(branch, length), true, policy);
          const absl::StatusOr<Answer> cached = Generate(0, Prompt(branch, length), false, policy);
          ASSERT_TRUE(plain.ok() && cached.ok()) << plain.status() << cached.status();
          EXPECT_EQ(plain->tokens.size(), 8u);
          EXPECT_EQ(cached->tokens, plain->tokens) << "branch " << branch << ", " << length << " tokens";
          hits.set_device(hits.device() + cached->hits.device());
          hits.set_host(hits.host() + cached->hits.host());
          hits.set_disk(hits.disk() + cached->hits.disk());
        }
      }
    }
    EXPECT_GT(hits.device(), 0u);
    EXPECT_GT(hits.host(), 0u);
    EXPECT_GT(hits.disk(), 0u);
    EXPECT_TRUE(cluster_->BooksAreClean());
    EXPECT_TRUE(cluster_->IndexEqualsWorkers());

    ASSERT_TRUE(cluster_->RestartGently(0));
    ASSERT_TRUE(cluster_->AwaitReady(0));
    const absl::StatusOr<Answer> plain = Generate(0, Prompt(2, 144), true, policy);
    const absl::StatusOr<Answer> cached = Generate(0, Prompt(2, 144), false, policy);
    ASSERT_TRUE(plain.ok() && cached.ok()) << plain.status() << cached.status();
    EXPECT_EQ(cached->tokens, plain->tokens);
    EXPECT_EQ(cached->hits.disk(), 144u);
    EXPECT_EQ(cached->computed_tokens, 143u);
  }

  TempDir model_;
  std::unique_ptr<ProcessCluster> cluster_;
};

TEST_F(WindowsTest, EveryLayerSlides) {
  WriteModel({{"architectures", {"MistralForCausalLM"}}, {"model_type", "mistral"}, {"sliding_window", 33}});
  Start(1);
  ExpectEqualFromEveryTier("");
}

TEST_F(WindowsTest, SomeLayersSlide) {
  WriteModel({{"sliding_window", 17}, {"layer_types", {"sliding_attention", "full_attention", "sliding_attention"}}});
  Start(1);
  ExpectEqualFromEveryTier("");
}

TEST_F(WindowsTest, StreamsWithSinks) {
  WriteModel(json::object());
  Start(1);
  ExpectEqualFromEveryTier("sinks=4,window=28");
}

// Blocks under one policy are never found under another, nor under full attention.
TEST_F(WindowsTest, PoliciesNeverMeet) {
  WriteModel(json::object());
  Start(1);
  const std::vector<uint32_t> prompt = Prompt(0, 100);
  for (const char* policy : {"", "sinks=4,window=28", "sinks=4,window=29", "sinks=0,window=28"}) {
    const absl::StatusOr<Answer> first = Generate(0, prompt, false, policy);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(first->computed_tokens, 0u) << policy;
    const absl::StatusOr<Answer> second = Generate(0, prompt, false, policy);
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(second->computed_tokens, 96u) << policy;
    EXPECT_EQ(second->tokens, first->tokens) << policy;
  }
  // "full" is the same as none.
  EXPECT_EQ(Generate(0, prompt, false, "full")->computed_tokens, 96u);
}

// What a worker with windows can't do is refused by name.
TEST_F(WindowsTest, RefusalsNameTheField) {
  WriteModel({{"sliding_window", 17}, {"layer_types", {"sliding_attention", "full_attention", "sliding_attention"}}});
  Start(1);
  const auto expect = [&](const std::string& policy) {
    const absl::Status status = Generate(0, Prompt(0, 20), false, policy).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << policy << ": " << status;
    EXPECT_NE(status.message().find("attention_policy"), absl::string_view::npos) << status;
  };
  expect("sinks=4,window=28");
  expect("sinks=4");
  expect("window=0");
}

struct PeerCase {
  bool all_slide;
  int window;
};

// What one worker computed, another one pulls: of the chain all of it, of the windows what the boundary needs.
class WindowPeersTest : public WindowsTest, public ::testing::WithParamInterface<PeerCase> {
 protected:
  void SetUp() override {
    json changes = {{"sliding_window", GetParam().window}};
    if (GetParam().all_slide) {
      changes["architectures"] = {"MistralForCausalLM"};
      changes["model_type"] = "mistral";
    } else {
      changes["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
    }
    WriteModel(changes);
    Start(2);
  }
  absl::StatusOr<ClusterGenerateResult> GenerateOn(size_t worker, const std::vector<uint32_t>& prompt) {
    return GenerateOnCluster(cluster_->client(),
                             {.tokens = prompt, .max_tokens = 8, .worker_id = cluster_->worker_id(worker)});
  }
  // Has the worker pull the prompt, whatever that costs beside computing it; the blocks before the boundary it reached.
  uint64_t Prefetch(const CacheIdentity& identity, const std::vector<uint32_t>& prompt, size_t worker) {
    const auto coordinator = v1::Coordinator::NewStub(
        grpc::CreateChannel(cluster_->coordinator_address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::PrefetchRequest request;
    IdentityToProto(identity, *request.mutable_prefix()->mutable_identity());
    request.mutable_prefix()->mutable_tokens()->mutable_ids()->Add(prompt.begin(), prompt.end());
    request.set_worker_id(cluster_->worker_id(worker));
    v1::PrefetchResponse response;
    const absl::Status status = FromGrpcStatus(coordinator->Prefetch(&context, request, &response));
    EXPECT_TRUE(status.ok()) << status;
    return response.blocks();
  }
  // Until the coordinator has heard of the prompt's last boundary.
  void AwaitFound(const CacheIdentity& identity, const std::vector<uint32_t>& prompt) {
    uint64_t found = 0;
    EXPECT_TRUE(Await(absl::Seconds(10),
                      [&] {
                        const auto route = cluster_->client().Route(identity, prompt, {.lookup_only = true});
                        found = route.ok() ? route->matched_tokens() : 0;
                        return found == prompt.size() / 16 * 16;
                      }))
        << found << " tokens are found of " << prompt.size();
  }
};

TEST_P(WindowPeersTest, GiveWhatABoundaryNeeds) {
  const absl::StatusOr<CacheIdentity> identity = ClusterModelIdentity(cluster_->client());
  ASSERT_TRUE(identity.ok()) << identity.status();
  uint32_t branch = 0;
  for (const size_t length : {16, 17, 32, 40, 64, 97, 144}) {
    SCOPED_TRACE(length);
    const std::vector<uint32_t> prompt = Prompt(++branch, length);
    const absl::StatusOr<ClusterGenerateResult> first = GenerateOn(0, prompt);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(first->computed_tokens, 0u);
    AwaitFound(*identity, prompt);
    const uint64_t boundary = length / 16 * 16;
    EXPECT_EQ(Prefetch(*identity, prompt, 1), boundary / 16);
    const absl::StatusOr<ClusterGenerateResult> pulled = GenerateOn(1, prompt);
    const absl::StatusOr<Answer> plain = Generate(1, prompt, true);
    ASSERT_TRUE(pulled.ok() && plain.ok()) << pulled.status() << plain.status();
    EXPECT_EQ(pulled->computed_tokens, std::min<uint64_t>(boundary, length - 1));
    EXPECT_EQ(pulled->tokens, plain->tokens);
    EXPECT_EQ(pulled->tokens, first->tokens);
  }
  EXPECT_TRUE(cluster_->BooksAreClean());
  EXPECT_TRUE(cluster_->IndexEqualsWorkers());
}

INSTANTIATE_TEST_SUITE_P(Models, WindowPeersTest,
                         ::testing::Values(PeerCase{false, 16}, PeerCase{false, 17}, PeerCase{false, 18},
                                           PeerCase{false, 33}, PeerCase{false, 128}, PeerCase{false, 129},
                                           PeerCase{true, 16}, PeerCase{true, 17}, PeerCase{true, 33},
                                           PeerCase{true, 129}),
                         [](const auto& info) {
                           return (info.param.all_slide ? "AllSlide" : "SomeSlide") + std::to_string(info.param.window);
                         });

}  // namespace
}  // namespace kvmesh
