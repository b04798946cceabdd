// Tiers that hold blocks in lossy formats: only requests that accept them get such copies, or what was computed on
// them, on this worker, after its restart and from a peer, until somebody computes them exactly. The coordinator knows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/generate.h"
#include "kvstore/service/grpc_status.h"
#include "tests/support/await.h"
#include "tests/support/process_cluster.h"
#include "tests/system/engine_calls.h"

namespace kvmesh {
namespace {

constexpr uint32_t kBlocks = 6;

LossyFormats Formats(std::initializer_list<KvFormat> formats) {
  LossyFormats out;
  for (const KvFormat format : formats) out.Add(format);
  return out;
}
const LossyFormats kExact;
const LossyFormats kInt8 = Formats({KvFormat::kInt8});

// K/V of `blocks` blocks.
std::string Payload(uint64_t seed, uint32_t blocks) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(blocks * kEngineBlockBytes / sizeof(float));
  for (float& value : values) value = normal(random);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// Not the same bits, but each value within what int8 leaves of its row.
testing::AssertionResult IsInt8Of(const std::string& payload, const std::string& bytes) {
  if (bytes.size() != payload.size()) return testing::AssertionFailure() << bytes.size() << " bytes";
  if (bytes == payload) return testing::AssertionFailure() << "it is exact";
  std::vector<float> is(bytes.size() / sizeof(float)), exact(is.size());
  std::memcpy(is.data(), bytes.data(), bytes.size());
  std::memcpy(exact.data(), payload.data(), bytes.size());
  for (size_t row = 0; row < is.size(); row += kEngineHeadDim) {
    float largest = 0;
    for (size_t i = row; i < row + kEngineHeadDim; ++i) largest = std::max(largest, std::abs(exact[i]));
    for (size_t i = row; i < row + kEngineHeadDim; ++i) {
      if (std::abs(is[i] - exact[i]) > 1.01f * largest / 254) {
        return testing::AssertionFailure() << "element " << i << " is " << is[i] << ", not " << exact[i];
      }
    }
  }
  return testing::AssertionSuccess();
}

class FormatsTest : public testing::Test {
 protected:
  FormatsTest() {
    identity_.model = "engine";
    identity_.block_tokens = kEngineBlockTokens;
  }
  void Start(std::vector<WorkerConfig> workers) {
    cluster_ = std::make_unique<ProcessCluster>(ClusterConfig{.workers = std::move(workers)});
    ASSERT_TRUE(cluster_->Start());
  }
  // Full blocks, and one token more, so that all of them count as computed.
  static std::vector<uint32_t> Tokens(uint32_t branch, uint32_t blocks) {
    std::vector<uint32_t> tokens;
    for (uint32_t i = 0; i < blocks * kEngineBlockTokens; ++i) tokens.push_back(branch * 1000 + i);
    tokens.push_back(7);
    return tokens;
  }
  void Put(size_t worker, const std::vector<uint32_t>& tokens, const std::string& payload) {
    const auto put = PutBlocks(*cluster_->Stub(worker), identity_, tokens, 0, payload);
    ASSERT_TRUE(put.ok()) << put.status();
    EXPECT_EQ(put->stored_blocks() + put->present_blocks(), tokens.size() / kEngineBlockTokens);
  }
  // Opens and closes a sequence; where its prefix was found.
  v1::HitTokens Hits(size_t worker, const std::vector<uint32_t>& tokens, LossyFormats accepted,
                     const v1::RouteResponse* route = nullptr) {
    const auto stub = cluster_->Stub(worker);
    const auto open = OpenSequence(*stub, identity_, tokens, route, accepted);
    EXPECT_TRUE(open.ok()) << open.status();
    if (!open.ok()) return {};
    const v1::HitTokens& hits = open->hits();
    EXPECT_EQ(open->computed_tokens(), hits.device() + hits.host() + hits.disk() + hits.peer());
    EXPECT_TRUE(CloseSequence(*stub, open->sequence_id()).ok());
    return hits;
  }
  // Opens a sequence that resumes as accepted, appends K/V up to the last full block, and closes it.
  void ComputeTheRest(size_t worker, const std::vector<uint32_t>& tokens, LossyFormats accepted, uint64_t seed) {
    const auto stub = cluster_->Stub(worker);
    const auto open = OpenSequence(*stub, identity_, tokens, nullptr, accepted);
    ASSERT_TRUE(open.ok()) << open.status();
    const uint32_t count = static_cast<uint32_t>(tokens.size() - open->computed_tokens());
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(size_t{kEngineLayers} * count * kEngineTokenFloats);
    for (float& value : values) value = normal(random);
    v1::AppendKvRequest request;
    request.set_sequence_id(open->sequence_id());
    request.set_start_position(open->computed_tokens());
    request.set_layers(kEngineLayers);
    request.set_tokens(count);
    request.set_key(values.data(), values.size() * sizeof(float));
    request.set_value(values.data(), values.size() * sizeof(float));
    grpc::ClientContext context;
    v1::AppendKvResponse response;
    const absl::Status appended = FromGrpcStatus(stub->AppendKv(&context, request, &response));
    EXPECT_TRUE(appended.ok()) << appended;
    EXPECT_TRUE(CloseSequence(*stub, open->sequence_id()).ok());
  }
  // The tokens that the coordinator finds, once its index is what the workers hold.
  uint64_t Matched(const std::vector<uint32_t>& tokens, LossyFormats accepted) {
    EXPECT_TRUE(cluster_->IndexEqualsWorkers());
    const auto route = cluster_->client().Route(identity_, tokens, {.accepted = accepted, .lookup_only = true});
    EXPECT_TRUE(route.ok()) << route.status();
    return route.ok() ? route->matched_tokens() : 0;
  }
  std::string Metric(size_t worker, const std::string& name) {
    std::string text;
    EXPECT_TRUE(HttpGet(cluster_->ops_port(worker), "/metrics", &text));
    const size_t at = text.find(absl::StrCat("\n", name, " "));
    if (at == std::string::npos) return "absent";
    const size_t begin = at + name.size() + 2;
    return text.substr(begin, text.find('\n', begin) - begin);
  }

  std::unique_ptr<ProcessCluster> cluster_;
  CacheIdentity identity_;
};

TEST_F(FormatsTest, Int8OnDiskIsServedWhereItIsAcceptedUntilItIsExactAgain) {
  ASSERT_NO_FATAL_FAILURE(Start({{.model = false, .disk = true, .extra = {"--disk-format", "int8"}}}));
  const std::vector<uint32_t> tokens = Tokens(1, kBlocks), longer = Tokens(1, kBlocks + 1);
  const std::string payload = Payload(1, kBlocks);
  Put(0, tokens, payload);
  const BlocksRead fresh = GetBlocks(*cluster_->Stub(0), identity_, tokens);
  EXPECT_EQ(fresh.payload, payload);
  EXPECT_EQ(Matched(tokens, kExact), 96u);

  ASSERT_TRUE(cluster_->RestartGently(0));
  EXPECT_EQ(Matched(tokens, kExact), 0u);
  EXPECT_EQ(Matched(tokens, Formats({KvFormat::kInt4})), 0u);
  EXPECT_EQ(Matched(tokens, kInt8), 96u);
  EXPECT_EQ(Hits(0, tokens, kExact).disk(), 0u);
  EXPECT_EQ(Metric(0, "kvmesh_worker_missed_tokens_total{reason=\"lossy\"}"), "96");
  EXPECT_EQ(Hits(0, tokens, kInt8).disk(), 96u);
  EXPECT_EQ(Metric(0, "kvmesh_worker_lossy_hit_tokens_total{source=\"disk\"}"), "96");
  EXPECT_EQ(Metric(0, "kvmesh_worker_converted_blocks_total{direction=\"up\",tier=\"disk\"}"), "6");

  // Promoted, it is no more exact than before.
  EXPECT_EQ(Hits(0, tokens, kInt8).device(), 96u);
  EXPECT_EQ(Hits(0, tokens, kExact).ByteSizeLong(), 0u);
  EXPECT_EQ(Matched(tokens, kExact), 0u);
  EXPECT_EQ(GetBlocks(*cluster_->Stub(0), identity_, tokens).blocks, 0u);
  const BlocksRead lossy = GetBlocks(*cluster_->Stub(0), identity_, tokens, kInt8);
  EXPECT_TRUE(IsInt8Of(payload, lossy.payload));

  // Nor is what was computed on it.
  ASSERT_NO_FATAL_FAILURE(ComputeTheRest(0, longer, kInt8, 2));
  EXPECT_EQ(Matched(longer, kInt8), 112u);
  EXPECT_EQ(Matched(longer, kExact), 0u);
  EXPECT_EQ(Hits(0, longer, kInt8).device(), 112u);
  EXPECT_EQ(Hits(0, longer, kExact).ByteSizeLong(), 0u);

  // Computed exactly: the prefix is exact again, and the block behind it only when it is computed again, too.
  Put(0, tokens, payload);
  EXPECT_EQ(Matched(longer, kExact), 96u);
  EXPECT_EQ(Matched(longer, kInt8), 112u);
  EXPECT_EQ(Hits(0, longer, kExact).device(), 96u);
  EXPECT_EQ(GetBlocks(*cluster_->Stub(0), identity_, tokens).payload, payload);
  ASSERT_NO_FATAL_FAILURE(ComputeTheRest(0, longer, kExact, 3));
  EXPECT_EQ(Matched(longer, kExact), 112u);
  EXPECT_EQ(Hits(0, longer, kExact).device(), 112u);

  // And on disk, once more, it is int8.
  ASSERT_TRUE(cluster_->RestartGently(0));
  EXPECT_EQ(Matched(longer, kExact), 0u);
  EXPECT_EQ(Matched(longer, kInt8), 112u);
  EXPECT_TRUE(IsInt8Of(payload, GetBlocks(*cluster_->Stub(0), identity_, tokens, kInt8).payload));
  EXPECT_TRUE(cluster_->BooksAreClean());
}

TEST_F(FormatsTest, PeersSendWhatTheirTiersHoldInTheLayoutOfTheDevice) {
  WorkerConfig sender{.model = false, .device_blocks = 16, .host_blocks = 64};
  sender.extra = {"--host-format", "int8"};
  ASSERT_NO_FATAL_FAILURE(Start({sender, {.model = false}}));
  const std::vector<uint32_t> tokens = Tokens(1, kBlocks);
  const std::string payload = Payload(1, kBlocks);
  Put(0, tokens, payload);
  for (uint32_t branch = 2; branch < 5; ++branch) Put(0, Tokens(branch, kBlocks), Payload(branch, kBlocks));
  EXPECT_EQ(Matched(tokens, kExact), 0u);
  EXPECT_EQ(Matched(tokens, kInt8), 96u);

  const auto route_to_1 = [&](LossyFormats accepted) {
    return cluster_->client().Route(identity_, tokens, {.worker_id = cluster_->worker_id(1), .accepted = accepted});
  };
  const auto exact = route_to_1(kExact);
  ASSERT_TRUE(exact.ok()) << exact.status();
  EXPECT_EQ(exact->sources_size(), 0);
  auto accepting = route_to_1(kInt8);
  ASSERT_TRUE(accepting.ok()) << accepting.status();
  ASSERT_EQ(accepting->sources_size(), 1);
  // The ticket accepts int8, this request does not.
  EXPECT_EQ(Hits(1, tokens, kExact, &*accepting).ByteSizeLong(), 0u);
  accepting = route_to_1(kInt8);
  ASSERT_TRUE(accepting.ok()) << accepting.status();
  EXPECT_EQ(Hits(1, tokens, kInt8, &*accepting).peer(), 96u);
  EXPECT_EQ(Metric(1, "kvmesh_worker_lossy_hit_tokens_total{source=\"peer\"}"), "96");
  EXPECT_EQ(Hits(1, tokens, kExact).ByteSizeLong(), 0u) << "what came from a peer is as lossy as there";
  EXPECT_EQ(Hits(1, tokens, kInt8).device(), 96u);
  EXPECT_TRUE(IsInt8Of(payload, GetBlocks(*cluster_->Stub(1), identity_, tokens, kInt8).payload));

  // Exact on one worker, it is exact for the other.
  Put(1, tokens, payload);
  EXPECT_EQ(Matched(tokens, kExact), 96u);
  const auto to_0 = cluster_->client().Route(identity_, tokens, {.worker_id = cluster_->worker_id(0)});
  ASSERT_TRUE(to_0.ok()) << to_0.status();
  EXPECT_EQ(Hits(0, tokens, kExact, &*to_0).peer(), 96u);
  EXPECT_EQ(GetBlocks(*cluster_->Stub(0), identity_, tokens).payload, payload);
  EXPECT_TRUE(cluster_->IndexEqualsWorkers());
  EXPECT_TRUE(cluster_->BooksAreClean());
}

TEST_F(FormatsTest, GenerationResumesFromLossyCopiesOnlyWhereItAcceptsThem) {
  ASSERT_NO_FATAL_FAILURE(Start({{.disk = true, .extra = {"--disk-format", "int8"}}}));
  const auto generate = [&](LossyFormats accepted) {
    ClusterGenerateRequest request;
    request.text = "And the LORD spake unto Moses, say:";  // 35 tokens
    request.max_tokens = 4;
    request.accepted = accepted;
    const auto result = GenerateOnCluster(cluster_->client(), request);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ClusterGenerateResult();
  };
  const std::vector<uint32_t> exact = generate(kExact).tokens;
  ASSERT_EQ(exact.size(), 4u);
  ASSERT_TRUE(cluster_->RestartGently(0));
  EXPECT_EQ(generate(kInt8).hits.disk(), 32u);
  EXPECT_EQ(generate(kInt8).hits.device(), 32u);
  const ClusterGenerateResult computed = generate(kExact);
  EXPECT_EQ(computed.computed_tokens, 0u);
  EXPECT_EQ(computed.tokens, exact);
  const ClusterGenerateResult resumed = generate(kExact);
  EXPECT_EQ(resumed.hits.device(), 32u) << "what was computed replaced the lossy copies";
  EXPECT_EQ(resumed.tokens, exact);
  EXPECT_TRUE(cluster_->IndexEqualsWorkers());
  EXPECT_TRUE(cluster_->BooksAreClean());
}

TEST_F(FormatsTest, DiskOfAnotherFormatOrPoolIsEmptied) {
  // The third has the same blocks on disk as the second, from another pool.
  const std::vector<std::vector<std::string>> starts = {
      {"--disk-format", "int8"}, {}, {"--kv-format", "bf16", "--disk-format", "fp32"}, {"--kv-format", "bf16"}};
  ASSERT_NO_FATAL_FAILURE(Start({{.model = false, .disk = true, .extra = starts[0]}}));
  const std::vector<uint32_t> tokens = Tokens(1, kBlocks);
  const LossyFormats all(~0u);
  const auto disk_blocks = [this] {
    const auto books = cluster_->DebugState(0);
    EXPECT_TRUE(books.ok()) << books.status();
    return books.ok() ? books->disk().used_blocks() : 0;
  };
  for (size_t i = 0; i < starts.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("flags ", i));
    if (i > 0) {
      cluster_->SetExtra(0, starts[i]);
      ASSERT_TRUE(cluster_->RestartGently(0));
    }
    EXPECT_EQ(disk_blocks(), 0u);
    EXPECT_EQ(Matched(tokens, all), 0u);
    EXPECT_EQ(Hits(0, tokens, all).ByteSizeLong(), 0u);
    Put(0, tokens, Payload(1, i < 2 ? kBlocks : kBlocks / 2));  // bf16 takes half as many bytes
    ASSERT_TRUE(cluster_->RestartGently(0));
    EXPECT_EQ(disk_blocks(), kBlocks);
    EXPECT_EQ(Matched(tokens, all), kBlocks * kEngineBlockTokens);
    EXPECT_EQ(Matched(tokens, kExact), i == 0 ? 0 : kBlocks * kEngineBlockTokens);
  }
}

}  // namespace
}  // namespace kvmesh
