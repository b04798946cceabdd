// An engine outside whose model has full and windowed layers: a worker keeps a pool for each of its layer groups, says
// so in its block tables, and takes and gives whole blocks of each. Attention and boundaries are checked against
// literal computations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/support/process_cluster.h"
#include "tests/support/temp_dir.h"
#include "tests/system/engine_calls.h"

namespace kvmesh {
namespace {

using nlohmann::json;

constexpr uint64_t kSeed = 23;
constexpr uint32_t kBlock = 16;
constexpr uint64_t kWindow = 20;
constexpr uint32_t kHeads = 4;
constexpr uint32_t kKvHeads = 2;
constexpr uint32_t kHeadDim = 16;
constexpr uint32_t kNoBlockId = 0xffffffff;

// As gpt-oss has it: layers 0 and 2 slide, 1 and 3 attend to everything.
json AlternatingConfig() {
  return {{"model_type", "gpt_oss"},         {"num_hidden_layers", 4},  {"num_attention_heads", kHeads},
          {"num_key_value_heads", kKvHeads}, {"head_dim", kHeadDim},    {"hidden_size", kHeads * kHeadDim},
          {"sliding_window", kWindow},       {"torch_dtype", "float32"}};
}

// A group of the worker: its layers, its number and its window.
struct Group {
  uint32_t number;
  uint64_t window;
  std::vector<uint32_t> layers;
};
const std::vector<Group> kAlternating = {{0, 0, {1, 3}}, {1, kWindow, {0, 2}}};

// K (or V) of all heads of a position in one layer of a prompt.
std::vector<float> Kv(uint64_t prompt, uint32_t layer, bool key, uint64_t position) {
  return DrawRow(kSeed + prompt, layer, key, position, size_t{kKvHeads} * kHeadDim);
}

// The canonical bytes of one block: [layer][K|V][kv_head][token][head_dim].
std::string BlockBytes(uint64_t prompt, const Group& group, uint32_t block) {
  std::string bytes;
  for (const uint32_t layer : group.layers) {
    for (const bool key : {true, false}) {
      for (uint32_t head = 0; head < kKvHeads; ++head) {
        for (uint32_t token = 0; token < kBlock; ++token) {
          const std::vector<float> row = Kv(prompt, layer, key, uint64_t{block} * kBlock + token);
          bytes += FloatBytes(std::span(row).subspan(size_t{head} * kHeadDim, kHeadDim));
        }
      }
    }
  }
  return bytes;
}

// A learned logit of each head and layer.
std::vector<float> HeadSinks(uint32_t layer) { return DrawRow(kSeed, layer, false, 1 << 20, kHeads); }

// Attention of one query head at `position` over the window's keys, 0: all, and the head's learned sink.
std::vector<double> PlainAttention(uint64_t prompt, uint32_t layer, uint64_t window, uint64_t position, uint32_t head,
                                   const float* query) {
  const uint32_t at = head / (kHeads / kKvHeads) * kHeadDim;
  double sum = std::exp(double{HeadSinks(layer)[head]});
  std::vector<double> out(kHeadDim);
  for (uint64_t j = window == 0 || position < window ? 0 : position + 1 - window; j <= position; ++j) {
    const std::vector<float> key = Kv(prompt, layer, true, j), value = Kv(prompt, layer, false, j);
    double dot = 0;
    for (uint32_t d = 0; d < kHeadDim; ++d) dot += double{query[d]} * key[at + d];
    const double weight = std::exp(dot / std::sqrt(double{kHeadDim}));
    sum += weight;
    for (uint32_t d = 0; d < kHeadDim; ++d) out[d] += weight * value[at + d];
  }
  for (double& value : out) value /= sum;
  return out;
}

// Positions that a prompt of `tokens` tokens, all of whose chain is there, counts as computed: c at the last boundary
// where the window's blocks with the positions [c - W + 1, c) are held, and in any case the last one; when c is the
// whole prompt its last token is computed again, and sees its window.
uint64_t ComputedTokens(const std::vector<bool>& window_held, uint64_t tokens) {
  for (uint64_t blocks = std::min<uint64_t>(tokens / kBlock, window_held.size()); blocks > 0; --blocks) {
    const uint64_t c = blocks * kBlock, next = c == tokens ? c - 1 : c;
    bool covered = window_held[blocks - 1];
    for (uint64_t j = next < kWindow ? 0 : next + 1 - kWindow; j < c; ++j) covered = covered && window_held[j / kBlock];
    if (covered) return next;
  }
  return 0;
}

class GroupsTest : public testing::Test {
 protected:
  void Start(std::vector<WorkerConfig> workers) {
    std::printf("seed %lu\n", static_cast<unsigned long>(kSeed));
    cluster_ = std::make_unique<ProcessCluster>(ClusterConfig{.workers = std::move(workers)});
    ASSERT_TRUE(cluster_->Start());
    identity_.model = "engine";
    identity_.block_tokens = kBlock;
  }
  WorkerConfig Engine(const json& config, const std::string& name = "config.json") {
    std::ofstream(folder_ / name) << config.dump();
    return {.model_config = folder_ / name, .device_blocks = 64, .disk = true};
  }
  CacheIdentity IdentityOf(uint64_t prompt) const {
    CacheIdentity identity = identity_;
    identity.cache_salt = absl::StrCat("prompt ", prompt);
    return identity;
  }
  static std::vector<uint32_t> Tokens(size_t count) {
    std::vector<uint32_t> tokens(count);
    for (uint32_t i = 0; i < count; ++i) tokens[i] = i * 7 + 1;
    return tokens;
  }
  absl::StatusOr<v1::AppendKvResponse> Append(v1::Worker::Stub& stub, uint64_t sequence, uint64_t prompt,
                                              uint32_t layer, uint64_t start, uint64_t end) {
    v1::AppendKvRequest request;
    request.set_sequence_id(sequence);
    request.set_start_position(start);
    request.set_first_layer(layer);
    request.set_layers(1);
    request.set_tokens(static_cast<uint32_t>(end - start));
    for (uint64_t p = start; p < end; ++p) {
      request.mutable_key()->append(FloatBytes(Kv(prompt, layer, true, p)));
      request.mutable_value()->append(FloatBytes(Kv(prompt, layer, false, p)));
    }
    return AppendKv(stub, request);
  }
  // Appends [start, end) in every layer; the last answer.
  v1::AppendKvResponse AppendAll(v1::Worker::Stub& stub, uint64_t sequence, uint64_t prompt, uint64_t start,
                                 uint64_t end) {
    absl::StatusOr<v1::AppendKvResponse> appended;
    for (uint32_t layer = 0; layer < 4; ++layer) {
      appended = Append(stub, sequence, prompt, layer, start, end);
      EXPECT_TRUE(appended.ok()) << appended.status();
      if (!appended.ok()) return {};
    }
    EXPECT_EQ(appended->computed_tokens(), end);
    return *appended;
  }
  // The worker's attention of [start, end) equals the literal one in each layer with that layer's window.
  void ExpectAttention(v1::Worker::Stub& stub, uint64_t sequence, uint64_t prompt, const std::vector<Group>& groups,
                       uint64_t start, uint64_t end) {
    const size_t row = size_t{kHeads} * kHeadDim;
    std::mt19937_64 random(kSeed + start);
    std::normal_distribution<float> normal;
    std::vector<float> query((end - start) * row);
    for (float& value : query) value = normal(random);
    for (const Group& group : groups) {
      for (const uint32_t layer : group.layers) {
        v1::AttendRequest request;
        request.set_sequence_id(sequence);
        request.set_layer(layer);
        request.set_start_position(start);
        request.set_tokens(static_cast<uint32_t>(end - start));
        request.set_q_heads(kHeads);
        request.set_query(FloatBytes(query));
        request.set_head_sinks(FloatBytes(HeadSinks(layer)));
        const absl::StatusOr<v1::AttendResponse> answer = Attend(stub, request);
        ASSERT_TRUE(answer.ok()) << answer.status();
        const std::vector<float> got = FloatsOf(answer->output());
        ASSERT_EQ(got.size(), query.size());
        for (uint64_t p = start; p < end; ++p) {
          for (uint32_t head = 0; head < kHeads; ++head) {
            const size_t at = (p - start) * row + size_t{head} * kHeadDim;
            const std::vector<double> plain = PlainAttention(prompt, layer, group.window, p, head, &query[at]);
            for (uint32_t d = 0; d < kHeadDim; ++d) {
              ASSERT_NEAR(got[at + d], plain[d], 1e-5) << "layer " << layer << " position " << p << " head " << head;
            }
          }
        }
      }
    }
  }
  // The tables are those of `groups`, of `blocks` blocks, and lack what an append from `position` on does not see.
  static void ExpectTables(const google::protobuf::RepeatedPtrField<v1::GroupTable>& tables,
                           const std::vector<Group>& groups, bool with_layers, uint64_t blocks, uint64_t position) {
    ASSERT_EQ(static_cast<size_t>(tables.size()), groups.size());
    for (int g = 0; g < tables.size(); ++g) {
      const Group& group = groups[static_cast<size_t>(g)];
      EXPECT_EQ(tables[g].group(), group.number);
      EXPECT_EQ(tables[g].window(), group.window);
      EXPECT_EQ(tables[g].sinks(), 0u);
      const std::vector<uint32_t> layers(tables[g].layers().begin(), tables[g].layers().end());
      EXPECT_EQ(layers, with_layers ? group.layers : std::vector<uint32_t>{});
      ASSERT_EQ(static_cast<uint64_t>(tables[g].block_table_size()), blocks) << "group " << group.number;
      for (uint64_t i = 0; i < blocks; ++i) {
        const bool unseen = group.window > 0 && (i + 1) * kBlock + group.window <= position + 1;
        EXPECT_EQ(tables[g].block_table(static_cast<int>(i)) == kNoBlockId, unseen)
            << "group " << group.number << " block " << i << " at " << position;
      }
    }
  }
  // Puts the prompt's blocks [first, end) of a group.
  absl::StatusOr<v1::PutBlocksResponse> Put(v1::Worker::Stub& stub, uint64_t prompt, const Group& group, uint32_t first,
                                            uint32_t end) {
    std::string payload;
    for (uint32_t block = first; block < end; ++block) payload += BlockBytes(prompt, group, block);
    return PutBlocks(stub, IdentityOf(prompt), Tokens(size_t{end} * kBlock), first, payload, group.number);
  }

  TempDir folder_;
  CacheIdentity identity_;
  std::unique_ptr<ProcessCluster> cluster_;
};

TEST_F(GroupsTest, AppendsAttendsAndResumesWithEachLayersWindow) {
  Start({Engine(AlternatingConfig())});
  const auto stub = cluster_->Stub(0);
  constexpr uint64_t kPrompt = 150;
  const auto opened = OpenSequence(*stub, IdentityOf(0), Tokens(kPrompt));
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->computed_tokens(), 0u);
  ASSERT_NO_FATAL_FAILURE(ExpectTables(opened->groups(), kAlternating, true, 0, 0));
  for (uint64_t start = 0; start < kPrompt; start += 10) {
    const v1::AppendKvResponse appended = AppendAll(*stub, opened->sequence_id(), 0, start, start + 10);
    ASSERT_NO_FATAL_FAILURE(
        ExpectTables(appended.groups(), kAlternating, false, (start + 10 + kBlock - 1) / kBlock, start));
    ASSERT_NO_FATAL_FAILURE(ExpectAttention(*stub, opened->sequence_id(), 0, kAlternating, start, start + 10));
  }
  v1::ForkRequest fork;
  fork.set_sequence_id(opened->sequence_id());
  grpc::ClientContext context;
  v1::ForkResponse forked;
  ASSERT_TRUE(stub->Fork(&context, fork, &forked).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectTables(forked.groups(), kAlternating, true, 10, kPrompt - 10));
  EXPECT_TRUE(CloseSequence(*stub, opened->sequence_id()).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectAttention(*stub, forked.sequence_id(), 0, kAlternating, kPrompt - 1, kPrompt));
  EXPECT_TRUE(CloseSequence(*stub, forked.sequence_id()).ok());

  // What was sealed has the canonical bytes, group by group.
  for (const Group& group : kAlternating) {
    const BlocksRead read =
        GetBlocks(*stub, IdentityOf(0), Tokens(kPrompt), LossyFormats(), {.first_block = 2, .group = group.number});
    EXPECT_TRUE(read.status.ok()) << read.status;
    ASSERT_EQ(read.blocks, 7u) << "group " << group.number;
    for (uint32_t i = 0; i < 7; ++i) {
      const std::string want = BlockBytes(0, group, 2 + i);
      EXPECT_TRUE(read.payload.substr(i * want.size(), want.size()) == want)
          << "group " << group.number << " " << 2 + i;
    }
  }

  const std::vector<bool> all(kPrompt / kBlock, true);
  for (const bool restarted : {false, true}) {
    if (restarted) {
      ASSERT_TRUE(cluster_->RestartGently(0));
      ASSERT_TRUE(cluster_->AwaitReady(0));
    }
    const auto worker = cluster_->Stub(0);
    for (const size_t length : {1, 15, 16, 17, 36, 37, 48, 100, 144, 145, 150}) {
      const auto again = OpenSequence(*worker, IdentityOf(0), Tokens(length));
      ASSERT_TRUE(again.ok()) << again.status();
      const uint64_t computed = again->computed_tokens();
      ASSERT_EQ(computed, ComputedTokens(all, length)) << length << " tokens";
      EXPECT_EQ(again->hits().device() + again->hits().disk(), length / kBlock * kBlock);
      // The last token of a full hit is computed over its own stored K/V.
      AppendAll(*worker, again->sequence_id(), 0, computed, length);
      ASSERT_NO_FATAL_FAILURE(ExpectAttention(*worker, again->sequence_id(), 0, kAlternating, computed, length));
      EXPECT_TRUE(CloseSequence(*worker, again->sequence_id()).ok());
    }
  }
  EXPECT_TRUE(cluster_->BooksAreClean());
  EXPECT_TRUE(cluster_->IndexEqualsWorkers());
}

// The chain of a prompt and some of its window's blocks, put by an engine: each comes back byte for byte, and a
// sequence goes on where, at most, its window is covered.
TEST_F(GroupsTest, BlocksPutForEachGroupComeBackAndCarryASequence) {
  Start({Engine(AlternatingConfig())});
  const auto stub = cluster_->Stub(0);
  const Group &chain = kAlternating[0], &window = kAlternating[1];
  std::mt19937_64 random(kSeed);
  constexpr uint32_t kBlocks = 6;
  std::vector<uint64_t> boundaries;
  for (uint64_t prompt = 1; prompt <= 24; ++prompt) {
    const auto put = Put(*stub, prompt, chain, 0, kBlocks);
    ASSERT_TRUE(put.ok()) << put.status();
    EXPECT_EQ(put->stored_blocks(), kBlocks);
    std::vector<bool> held(kBlocks);
    for (uint32_t i = 0; i < kBlocks; ++i) {
      // The round's rarity of holes, from all there to nearly none.
      held[i] = random() % 24 >= prompt - 1;
      if (!held[i]) continue;
      const auto one = Put(*stub, prompt, window, i, i + 1);
      ASSERT_TRUE(one.ok()) << one.status();
      EXPECT_EQ(one->stored_blocks(), 1u);
      EXPECT_EQ(Put(*stub, prompt, window, i, i + 1)->present_blocks(), 1u);
    }
    const CacheIdentity identity = IdentityOf(prompt);
    for (uint32_t i = 0; i < kBlocks; ++i) {
      for (const Group& group : kAlternating) {
        const BlocksRead read = GetBlocks(*stub, identity, Tokens(size_t{kBlocks} * kBlock), LossyFormats(),
                                          {.first_block = i, .blocks = 1, .group = group.number});
        ASSERT_TRUE(read.status.ok()) << read.status;
        const bool there = group.number == 0 || held[i];
        EXPECT_TRUE(read.payload == (there ? BlockBytes(prompt, group, i) : "")) << "prompt " << prompt << " " << i;
      }
    }
    for (const uint64_t length : {uint64_t{40}, uint64_t{80}, uint64_t{kBlocks} * kBlock, random() % 96 + 1}) {
      const auto opened = OpenSequence(*stub, identity, Tokens(length));
      ASSERT_TRUE(opened.ok()) << opened.status();
      const uint64_t computed = opened->computed_tokens();
      ASSERT_EQ(computed, ComputedTokens(held, length)) << "prompt " << prompt << ", " << length << " tokens";
      boundaries.push_back(computed);
      if (computed > 0 && computed < length) {
        AppendAll(*stub, opened->sequence_id(), prompt, computed, std::min(computed + 3, length));
        ASSERT_NO_FATAL_FAILURE(ExpectAttention(*stub, opened->sequence_id(), prompt, kAlternating, computed,
                                                std::min(computed + 3, length)));
      }
      EXPECT_TRUE(CloseSequence(*stub, opened->sequence_id()).ok());
    }
  }
  std::sort(boundaries.begin(), boundaries.end());
  boundaries.erase(std::unique(boundaries.begin(), boundaries.end()), boundaries.end());
  EXPECT_GE(boundaries.size(), 6u);
  EXPECT_TRUE(cluster_->BooksAreClean());
  EXPECT_TRUE(cluster_->IndexEqualsWorkers());
}

TEST_F(GroupsTest, MalformedCallsNameTheField) {
  Start({Engine(AlternatingConfig())});
  const auto stub = cluster_->Stub(0);
  const Group &chain = kAlternating[0], &window = kAlternating[1];
  ASSERT_TRUE(Put(*stub, 1, chain, 0, 2).ok());
  const auto expect = [](const absl::Status& status, absl::StatusCode code, const std::string& text) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(status.message().find(text), absl::string_view::npos) << status;
  };
  constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
  const CacheIdentity identity = IdentityOf(1);
  const std::vector<uint32_t> tokens = Tokens(4 * kBlock);
  // A chain needs what comes before, a window does not.
  expect(Put(*stub, 1, chain, 3, 4).status(), absl::StatusCode::kNotFound, "first_block: only 2 of the 3");
  EXPECT_TRUE(Put(*stub, 1, window, 3, 4).ok());
  expect(PutBlocks(*stub, identity, tokens, 0, "", 2).status(), kInvalid, "group: 2, such sequences have 0 and 1");
  expect(PutBlocks(*stub, identity, tokens, 0, "", kNoBlockId).status(), kInvalid, "group: 4294967295");
  expect(PutBlocks(*stub, identity, tokens, 4, "", 1).status(), kInvalid, "first_block: 4, the tokens have 4");
  const std::string block = BlockBytes(1, window, 0);
  expect(PutBlocks(*stub, identity, tokens, 3, block + "x", 1).status(), kInvalid, "payload: more bytes");
  expect(PutBlocks(*stub, identity, tokens, 2, block + "x", 1).status(), kInvalid, "payload: ended 1 bytes");
  const auto get = [&](const BlockSpan& span) {
    return GetBlocks(*stub, identity, tokens, LossyFormats(), span).status;
  };
  expect(get({.group = 2}), kInvalid, "group: 2");
  expect(get({.first_block = 5, .group = 1}), kInvalid, "first_block: 5, the tokens have 4");
  expect(get({.first_block = 5}), kInvalid, "first_block: 5, the tokens have 4");
  expect(get({.first_block = 2, .blocks = 3, .group = 1}), kInvalid, "blocks: 3 from block 2");
  expect(get({.first_block = 1, .blocks = kNoBlockId}), kInvalid, "blocks: 4294967295");
  EXPECT_TRUE(get({.first_block = 4, .group = 1}).ok());
  CacheIdentity streaming = identity;
  streaming.attention_policy = "sinks=4,window=20";
  expect(PutBlocks(*stub, streaming, tokens, 0, "").status(), kInvalid, "attention_policy");
  expect(GetBlocks(*stub, streaming, tokens).status, kInvalid, "attention_policy");
  expect(OpenSequence(*stub, streaming, tokens).status(), kInvalid, "attention_policy");
  const auto opened = OpenSequence(*stub, identity, tokens);
  ASSERT_TRUE(opened.ok()) << opened.status();
  expect(Append(*stub, opened->sequence_id(), 1, 4, 0, 1).status(), kInvalid, "layers: 4 + 1, the model has 4");
  v1::AttendRequest attend;
  attend.set_sequence_id(opened->sequence_id());
  attend.set_q_heads(kHeads);
  attend.set_tokens(1);
  attend.set_query(std::string(size_t{kHeads} * kHeadDim * sizeof(float), 'q'));
  attend.set_head_sinks(std::string(12, 'x'));
  expect(Attend(*stub, attend).status(), kInvalid, "head_sinks: 12 bytes, must be 4 fp32 values");
  EXPECT_TRUE(CloseSequence(*stub, opened->sequence_id()).ok());
  EXPECT_TRUE(cluster_->BooksAreClean());
}

}  // namespace
}  // namespace kvmesh
