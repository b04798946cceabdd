// An engine outside: it writes K/V layer by layer, attends through the worker, forks, truncates, and resumes elsewhere
// what was sealed. Attention is checked against a plain one in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "absl/time/clock.h"
#include "kernels/streaming_policy.h"
#include "kvstore/service/grpc_status.h"
#include "tests/support/await.h"
#include "tests/support/process_cluster.h"
#include "tests/system/engine_calls.h"

namespace kvmesh {
namespace {

constexpr uint32_t kQueryHeads = 4;
constexpr uint64_t kSeed = 11;

// K and V of every position, a function of layer, position and branch.
std::vector<float> Values(uint32_t layer, bool key, uint64_t position, uint64_t branch) {
  std::mt19937_64 random(kSeed + layer * 1'000'003 + (key ? 7 : 0) + position * 131 + branch * 1'000'000'007);
  std::normal_distribution<float> normal;
  std::vector<float> values(kEngineTokenFloats);
  for (float& value : values) value = normal(random);
  return values;
}

// Positions before `fork` are of branch 0, those after it of `branch`.
struct Content {
  uint64_t branch = 0;
  uint64_t fork = 0;
  std::vector<float> At(uint32_t layer, bool key, uint64_t position) const {
    return Values(layer, key, position, position < fork ? 0 : branch);
  }
};

std::string Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// Attention of one query at `position`, and its log-sum-exp: causal, or, with a window, to that and to the sinks
// outside it, which `sink_query` meets.
std::vector<double> PlainAttention(const Content& content, uint32_t layer, uint64_t position, uint32_t head,
                                   const float* query, const float* sink_query, const StreamingPolicy& policy,
                                   double& lse) {
  const uint32_t kv_head = head / (kQueryHeads / kEngineKvHeads);
  const auto window = static_cast<uint64_t>(policy.window), sinks = static_cast<uint64_t>(policy.sinks);
  std::vector<double> scores;
  for (uint64_t j = 0; j <= position; ++j) {
    const bool outside = policy.streams() && position - j >= window;
    const float* const q = outside ? sink_query : query;
    const std::vector<float> key = content.At(layer, true, j);
    double dot = 0;
    for (uint32_t d = 0; d < kEngineHeadDim; ++d) dot += double{q[d]} * key[kv_head * kEngineHeadDim + d];
    const bool seen = !outside || j < sinks;
    scores.push_back(seen ? dot / std::sqrt(double{kEngineHeadDim}) : -std::numeric_limits<double>::infinity());
  }
  const double top = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  std::vector<double> out(kEngineHeadDim);
  for (uint64_t j = 0; j <= position; ++j) {
    const double weight = std::exp(scores[j] - top);
    sum += weight;
    const std::vector<float> value = content.At(layer, false, j);
    for (uint32_t d = 0; d < kEngineHeadDim; ++d) out[d] += weight * value[kv_head * kEngineHeadDim + d];
  }
  for (double& value : out) value /= sum;
  lse = top + std::log(sum);
  return out;
}

class SequenceTest : public testing::Test {
 protected:
  void SetUp() override {
    cluster_ = std::make_unique<ProcessCluster>(
        ClusterConfig{.workers = {{.model = false, .device_blocks = 24, .disk = true}, {.model = false}}});
    ASSERT_TRUE(cluster_->Start());
    identity_.model = "engine";
    identity_.block_tokens = kEngineBlockTokens;
    for (uint32_t i = 0; i < 50; ++i) tokens_.push_back(i * 7 + 1);
  }

  // K/V of [start, end) into one layer.
  absl::StatusOr<v1::AppendKvResponse> Append(v1::Worker::Stub& stub, uint64_t sequence, uint32_t layer, uint64_t start,
                                              uint64_t end, const Content& content,
                                              const std::vector<uint32_t>& token_ids = {}, uint32_t drafts = 0) {
    v1::AppendKvRequest request;
    request.set_sequence_id(sequence);
    request.set_start_position(start);
    request.set_first_layer(layer);
    request.set_layers(1);
    request.set_tokens(static_cast<uint32_t>(end - start));
    for (uint64_t p = start; p < end; ++p) {
      request.mutable_key()->append(Bytes(content.At(layer, true, p)));
      request.mutable_value()->append(Bytes(content.At(layer, false, p)));
    }
    request.mutable_token_ids()->Add(token_ids.begin(), token_ids.end());
    request.set_draft_tokens(drafts);
    grpc::ClientContext context;
    v1::AppendKvResponse response;
    const grpc::Status status = stub.AppendKv(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }

  absl::StatusOr<v1::AcceptResponse> Accept(v1::Worker::Stub& stub, uint64_t sequence, uint64_t tokens) {
    v1::AcceptRequest request;
    request.set_sequence_id(sequence);
    request.set_tokens(tokens);
    grpc::ClientContext context;
    v1::AcceptResponse response;
    const grpc::Status status = stub.Accept(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }

  // The worker's attention of [start, end) equals the plain one in every layer.
  void ExpectAttention(v1::Worker::Stub& stub, uint64_t sequence, uint64_t start, uint64_t end,
                       const Content& content) {
    std::mt19937_64 random(kSeed);
    std::normal_distribution<float> normal;
    const size_t row = size_t{kQueryHeads} * kEngineHeadDim;
    std::vector<float> query((end - start) * row);
    for (float& value : query) value = normal(random);
    std::vector<float> sink_query(query.size());
    for (float& value : sink_query) value = normal(random);
    for (uint32_t layer = 0; layer < kEngineLayers; ++layer) {
      v1::AttendRequest request;
      request.set_sequence_id(sequence);
      request.set_layer(layer);
      request.set_start_position(start);
      request.set_tokens(static_cast<uint32_t>(end - start));
      request.set_q_heads(kQueryHeads);
      request.set_query(Bytes(query));
      if (policy_.streams()) request.set_sink_query(Bytes(sink_query));
      request.set_return_lse(true);
      grpc::ClientContext context;
      v1::AttendResponse response;
      const grpc::Status status = stub.Attend(&context, request, &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
      ASSERT_EQ(response.output().size(), query.size() * sizeof(float));
      ASSERT_EQ(response.lse().size(), (end - start) * kQueryHeads * sizeof(float));
      for (uint64_t p = start; p < end; ++p) {
        for (uint32_t head = 0; head < kQueryHeads; ++head) {
          const size_t at = (p - start) * row + size_t{head} * kEngineHeadDim;
          double lse = 0;
          const std::vector<double> plain =
              PlainAttention(content, layer, p, head, &query[at], &sink_query[at], policy_, lse);
          for (uint32_t d = 0; d < kEngineHeadDim; ++d) {
            float got;
            std::memcpy(&got, response.output().data() + (at + d) * sizeof(float), sizeof(got));
            ASSERT_NEAR(got, plain[d], 1e-5) << "layer " << layer << " position " << p << " head " << head;
          }
          float got;
          std::memcpy(&got, response.lse().data() + ((p - start) * kQueryHeads + head) * sizeof(float), sizeof(got));
          ASSERT_NEAR(got, lse, 1e-5);
        }
      }
    }
  }

  // Opens the tokens on worker `i` and writes all that is not computed.
  uint64_t OpenAndFill(size_t i, const v1::RouteResponse* route = nullptr) {
    const auto stub = cluster_->Stub(i);
    const auto opened = OpenSequence(*stub, identity_, tokens_, route);
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (!opened.ok()) return 0;
    for (uint32_t layer = 0; layer < kEngineLayers; ++layer) {
      const auto appended =
          Append(*stub, opened->sequence_id(), layer, opened->computed_tokens(), tokens_.size(), Content{});
      EXPECT_TRUE(appended.ok()) << appended.status();
      const bool last = layer + 1 == kEngineLayers;
      if (appended.ok()) {
        EXPECT_EQ(appended->computed_tokens(), last ? tokens_.size() : opened->computed_tokens());
      }
    }
    return opened->sequence_id();
  }

  std::unique_ptr<ProcessCluster> cluster_;
  CacheIdentity identity_;
  StreamingPolicy policy_;  // of the identity
  std::vector<uint32_t> tokens_;
};

TEST_F(SequenceTest, AttentionOverAppendedLayersIsThePlainOne) {
  std::printf("seed %lu\n", kSeed);
  const auto stub = cluster_->Stub(0);
  const uint64_t sequence = OpenAndFill(0);
  ExpectAttention(*stub, sequence, 0, tokens_.size(), Content{});
  // Decode steps that bring their tokens along, across a block's end.
  for (uint64_t p = tokens_.size(); p < tokens_.size() + 20; ++p) {
    for (uint32_t layer = 0; layer < kEngineLayers; ++layer) {
      const auto appended =
          Append(*stub, sequence, layer, p, p + 1, Content{},
                 layer == 0 ? std::vector<uint32_t>{static_cast<uint32_t>(p)} : std::vector<uint32_t>{});
      ASSERT_TRUE(appended.ok()) << appended.status();
    }
    ASSERT_NO_FATAL_FAILURE(ExpectAttention(*stub, sequence, p, p + 1, Content{}));
  }
  EXPECT_TRUE(CloseSequence(*stub, sequence).ok());
  EXPECT_TRUE(absl::IsNotFound(CloseSequence(*stub, sequence)));
  EXPECT_TRUE(cluster_->BooksAreClean());
}

// 400 positions under a policy of 23, appended and attended to in steps, in the blocks of the sinks, the window and a
// step; then resumed under that policy, and only under that.
TEST_F(SequenceTest, StreamsUnderItsPolicy) {
  policy_ = {.sinks = 3, .window = 20};
  identity_.attention_policy = "sinks=3,window=20";
  tokens_.resize(400);
  for (uint32_t i = 0; i < tokens_.size(); ++i) tokens_[i] = i % 97;
  const auto stub = cluster_->Stub(0);
  const auto opened = OpenSequence(*stub, identity_, tokens_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  for (uint64_t start = 0; start < tokens_.size(); start += 10) {
    for (uint32_t layer = 0; layer < kEngineLayers; ++layer) {
      const auto appended = Append(*stub, opened->sequence_id(), layer, start, start + 10, Content{});
      ASSERT_TRUE(appended.ok()) << appended.status();
    }
    ASSERT_NO_FATAL_FAILURE(ExpectAttention(*stub, opened->sequence_id(), start, start + 10, Content{}));
    EXPECT_LE(cluster_->DebugState(0)->pinned_blocks(), 5u);
  }
  // What the window has left behind can't be attended from, and a step needs the query for the sinks.
  v1::AttendRequest request;
  request.set_sequence_id(opened->sequence_id());
  request.set_start_position(200);
  request.set_tokens(1);
  request.set_q_heads(kQueryHeads);
  request.set_query(Bytes(std::vector<float>(size_t{kQueryHeads} * kEngineHeadDim)));
  request.set_sink_query(request.query());
  const auto refusal = [&] {
    grpc::ClientContext context;
    v1::AttendResponse response;
    return FromGrpcStatus(stub->Attend(&context, request, &response));
  };
  EXPECT_NE(refusal().message().find("start_position: 200"), absl::string_view::npos) << refusal();
  request.set_start_position(399);
  EXPECT_TRUE(refusal().ok()) << refusal();
  request.clear_sink_query();
  EXPECT_TRUE(absl::IsInvalidArgument(refusal()));
  EXPECT_NE(refusal().message().find("sink_query"), absl::string_view::npos) << refusal();
  EXPECT_TRUE(CloseSequence(*stub, opened->sequence_id()).ok());

  tokens_.resize(396);
  const auto again = OpenSequence(*stub, identity_, tokens_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->computed_tokens(), 384u);
  for (uint32_t layer = 0; layer < kEngineLayers; ++layer) {
    ASSERT_TRUE(Append(*stub, again->sequence_id(), layer, 384, 396, Content{}).ok());
  }
  ExpectAttention(*stub, again->sequence_id(), 384, 396, Content{});
  EXPECT_TRUE(CloseSequence(*stub, again->sequence_id()).ok());
  for (const char* other : {"", "sinks=3,window=21", "sinks=2,window=20"}) {
    CacheIdentity identity = identity_;
    identity.attention_policy = other;
    const auto cold = OpenSequence(*stub, identity, tokens_);
    ASSERT_TRUE(cold.ok()) << cold.status();
    EXPECT_EQ(cold->computed_tokens(), 0u) << other;
    EXPECT_TRUE(CloseSequence(*stub, cold->sequence_id()).ok());
  }
  EXPECT_TRUE(cluster_->BooksAreClean());
}

TEST_F(SequenceTest, ForkAndTruncationLeaveTheOtherSequenceAlone) {
  const auto stub = cluster_->Stub(0);
  const uint64_t first = OpenAndFill(0);
  v1::ForkRequest fork;
  fork.set_sequence_id(first);
  v1::ForkResponse forked;
  grpc::ClientContext fork_context;
  ASSERT_TRUE(stub->Fork(&fork_context, fork, &forked).ok());
  const uint64_t second = forked.sequence_id();
  // Cut inside a sealed block, then written on differently.
  constexpr uint64_t kKept = 21;
  v1::TruncateRequest truncate;
  truncate.set_sequence_id(second);
  truncate.set_tokens(kKept);
  v1::TruncateResponse truncated;
  grpc::ClientContext truncate_context;
  ASSERT_TRUE(stub->Truncate(&truncate_context, truncate, &truncated).ok());
  EXPECT_EQ(truncated.computed_tokens(), kKept);
  const Content other{.branch = 1, .fork = kKept};
  const std::vector<uint32_t> ids(30, 9);
  for (uint32_t layer = 0; layer < kEngineLayers; ++layer) {
    const auto appended =
        Append(*stub, second, layer, kKept, kKept + 30, other, layer == 0 ? ids : std::vector<uint32_t>{});
    ASSERT_TRUE(appended.ok()) << appended.status();
  }
  ASSERT_NO_FATAL_FAILURE(ExpectAttention(*stub, second, 0, kKept + 30, other));
  ASSERT_NO_FATAL_FAILURE(ExpectAttention(*stub, first, 0, tokens_.size(), Content{}));
  EXPECT_TRUE(CloseSequence(*stub, first).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectAttention(*stub, second, 0, kKept + 30, other));
  EXPECT_TRUE(CloseSequence(*stub, second).ok());
  EXPECT_TRUE(cluster_->BooksAreClean());
  EXPECT_TRUE(cluster_->IndexEqualsWorkers());
}

// Steps of one token and 7 drafts each, of which some are accepted: blocks with drafts are found by nobody, not after a
// restart either; the accepted ones have the bytes of a run without drafts.
TEST_F(SequenceTest, DraftsAreNeverFindableAndAcceptedTokensSealTheSameBytes) {
  const auto stub = cluster_->Stub(0);
  const uint64_t sequence = OpenAndFill(0);
  std::mt19937_64 random(kSeed);
  std::vector<uint32_t> tokens = tokens_;
  std::vector<std::vector<uint32_t>> drafted;
  while (tokens.size() < 100) {
    const uint64_t at = tokens.size();
    tokens.push_back(static_cast<uint32_t>(at * 7 + 1));
    std::vector<uint32_t> ids = {tokens.back()};
    const uint64_t good = random() % 8;
    for (uint64_t i = 1; i < 8; ++i) ids.push_back(static_cast<uint32_t>((at + i) * 7 + (i <= good ? 1 : 3)));
    const Content content{.branch = 1 + at, .fork = at + 1 + good};
    for (uint32_t layer = 0; layer < kEngineLayers; ++layer) {
      const auto appended = Append(*stub, sequence, layer, at, at + 8, content,
                                   layer == 0 ? ids : std::vector<uint32_t>{}, layer == 0 ? 7 : 0);
      ASSERT_TRUE(appended.ok()) << appended.status();
    }
    ASSERT_NO_FATAL_FAILURE(ExpectAttention(*stub, sequence, at, at + 8, content));
    drafted.push_back(tokens);
    drafted.back().insert(drafted.back().end(), ids.begin() + 1, ids.end());
    EXPECT_EQ(GetBlocks(*stub, identity_, drafted.back()).blocks, (at + 1) / kEngineBlockTokens);
    const auto after = Append(*stub, sequence, 0, at + 8, at + 9, content, {1});
    EXPECT_TRUE(absl::IsInvalidArgument(after.status())) << after.status();
    const auto accepted = Accept(*stub, sequence, at + 1 + good);
    ASSERT_TRUE(accepted.ok()) << accepted.status();
    EXPECT_EQ(accepted->computed_tokens(), at + 1 + good);
    tokens.insert(tokens.end(), ids.begin() + 1, ids.begin() + 1 + static_cast<ptrdiff_t>(good));
  }
  EXPECT_TRUE(CloseSequence(*stub, sequence).ok());
  const uint64_t sealed = tokens.size() / kEngineBlockTokens;
  // A run without drafts on the other worker.
  tokens_ = tokens;
  const uint64_t plain = OpenAndFill(1);
  EXPECT_TRUE(CloseSequence(*cluster_->Stub(1), plain).ok());
  const BlocksRead want = GetBlocks(*cluster_->Stub(1), identity_, tokens);
  ASSERT_EQ(want.blocks, sealed);
  const auto expect_accepted_only = [&] {
    const auto worker = cluster_->Stub(0);
    const BlocksRead got = GetBlocks(*worker, identity_, tokens);
    EXPECT_EQ(got.blocks, sealed);
    EXPECT_TRUE(got.payload == want.payload) << "other bytes";
    for (const std::vector<uint32_t>& each : drafted) {
      const auto common = std::mismatch(each.begin(), each.end(), tokens.begin(), tokens.end()).first - each.begin();
      const uint64_t blocks = std::min<uint64_t>(static_cast<uint64_t>(common) / kEngineBlockTokens, sealed);
      EXPECT_EQ(GetBlocks(*worker, identity_, each).blocks, blocks);
      const auto opened = OpenSequence(*worker, identity_, each);
      ASSERT_TRUE(opened.ok()) << opened.status();
      EXPECT_EQ(opened->hits().device(), blocks * kEngineBlockTokens);
      EXPECT_TRUE(CloseSequence(*worker, opened->sequence_id()).ok());
    }
  };
  ASSERT_NO_FATAL_FAILURE(expect_accepted_only());
  EXPECT_TRUE(cluster_->BooksAreClean());
  EXPECT_TRUE(cluster_->IndexEqualsWorkers());
  // Other blocks push these to the disk.
  const std::vector<uint32_t> other(20 * kEngineBlockTokens, 5);
  const auto put = PutBlocks(*stub, identity_, other, 0, std::string(20 * kEngineBlockBytes, 'x'));
  ASSERT_TRUE(put.ok()) << put.status();
  ASSERT_TRUE(cluster_->RestartGently(0));
  ASSERT_NO_FATAL_FAILURE(expect_accepted_only());
}

TEST_F(SequenceTest, SealedBlocksResumeOnAnotherWorkerFromRoutedSources) {
  const uint64_t sequence = OpenAndFill(0);
  EXPECT_TRUE(CloseSequence(*cluster_->Stub(0), sequence).ok());
  v1::RouteResponse route;
  ASSERT_TRUE(Await(absl::Seconds(5), [&] {
    const auto answer = cluster_->client().Route(identity_, tokens_, {.worker_id = cluster_->worker_id(1)});
    if (answer.ok()) route = *answer;
    return route.matched_tokens() == 48 && route.sources_size() > 0;
  })) << route.DebugString();
  EXPECT_EQ(route.worker_id(), cluster_->worker_id(1));
  const auto stub = cluster_->Stub(1);
  const auto opened = OpenSequence(*stub, identity_, tokens_, &route);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->hits().peer(), 48u);
  EXPECT_EQ(opened->computed_tokens(), 48u);
  for (uint32_t layer = 0; layer < kEngineLayers; ++layer) {
    const auto appended = Append(*stub, opened->sequence_id(), layer, 48, tokens_.size(), Content{});
    ASSERT_TRUE(appended.ok()) << appended.status();
  }
  ASSERT_NO_FATAL_FAILURE(ExpectAttention(*stub, opened->sequence_id(), 0, tokens_.size(), Content{}));
  EXPECT_TRUE(CloseSequence(*stub, opened->sequence_id()).ok());
  EXPECT_TRUE(cluster_->BooksAreClean());
  EXPECT_TRUE(cluster_->IndexEqualsWorkers());
}

}  // namespace
}  // namespace kvmesh
