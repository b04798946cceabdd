// What else an engine's model can look like: latent attention, windows in every layer, streams over layers that have
// none; and what is refused at the start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kvstore/wire/wire.h"
#include "tests/support/await.h"
#include "tests/support/child_process.h"
#include "tests/support/process_cluster.h"
#include "tests/support/temp_dir.h"
#include "tests/system/engine_calls.h"
#include "tests/unit/worker/model/tiny_model.h"

namespace kvmesh {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 31;
constexpr uint32_t kBlock = 16;
constexpr absl::Duration kPatience = absl::Seconds(20);

constexpr uint32_t kLatent = 32;
constexpr uint32_t kRope = 16;
constexpr uint32_t kRow = kLatent + kRope;
constexpr uint32_t kHeads = 4;
constexpr uint32_t kLayers = 2;

json LatentConfig() {
  return {{"model_type", "deepseek_v3"},
          {"num_hidden_layers", kLayers},
          {"num_attention_heads", kHeads},
          {"kv_lora_rank", kLatent},
          {"qk_rope_head_dim", kRope}};
}

json SlidingConfig() {
  return {{"model_type", "mistral"},  {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"head_dim", 16},         {"sliding_window", 17}};
}

std::vector<float> LatentRow(uint32_t layer, uint64_t position) {
  std::vector<float> row = DrawRow(kSeed, layer, true, position, kLatent);
  const std::vector<float> rope_key = DrawRow(kSeed, layer, false, position, kRope);
  row.insert(row.end(), rope_key.begin(), rope_key.end());
  return row;
}

std::vector<uint32_t> Tokens(size_t count) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) tokens[i] = i * 3 + 2;
  return tokens;
}

void ExpectRefused(const absl::Status& status, const std::string& text) {
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

class EngineModelTest : public ::testing::Test {
 protected:
  std::string Config(const json& config) {
    const std::string path = folder_ / "config.json";
    std::ofstream(path) << config.dump();
    return path;
  }
  void Start(const WorkerConfig& worker) {
    std::printf("seed %lu\n", static_cast<unsigned long>(kSeed));
    cluster_ = std::make_unique<ProcessCluster>(ClusterConfig{.workers = {worker}});
    ASSERT_TRUE(cluster_->Start());
    identity_.model = "engine";
    identity_.block_tokens = kBlock;
  }
  // Latents of [start, end), all layers in one call.
  v1::AppendKvRequest LatentAppend(uint64_t sequence, uint64_t start, uint64_t end) {
    v1::AppendKvRequest request;
    request.set_sequence_id(sequence);
    request.set_start_position(start);
    request.set_layers(kLayers);
    request.set_tokens(static_cast<uint32_t>(end - start));
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint64_t p = start; p < end; ++p) {
        const std::vector<float> row = LatentRow(layer, p);
        request.mutable_key()->append(FloatBytes(std::span(row).first(kLatent)));
        request.mutable_value()->append(FloatBytes(std::span(row).last(kRope)));
      }
    }
    return request;
  }
  v1::AttendRequest LatentAttend(uint64_t sequence, uint32_t layer, uint64_t start, uint64_t end) {
    v1::AttendRequest request;
    request.set_sequence_id(sequence);
    request.set_layer(layer);
    request.set_start_position(start);
    request.set_tokens(static_cast<uint32_t>(end - start));
    request.set_q_heads(kHeads);
    request.set_scale(0.2f);
    request.set_return_lse(true);
    for (uint64_t p = start; p < end; ++p) {
      request.mutable_query()->append(FloatBytes(DrawRow(kSeed + 1, layer, true, p, size_t{kHeads} * kRow)));
    }
    return request;
  }
  // The worker's attention of [start, end) over latents equals the literal one in every layer.
  void ExpectLatentAttention(v1::Worker::Stub& stub, uint64_t sequence, uint64_t start, uint64_t end) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const auto answer = Attend(stub, LatentAttend(sequence, layer, start, end));
      ASSERT_TRUE(answer.ok()) << answer.status();
      const std::vector<float> got = FloatsOf(answer->output()), lse = FloatsOf(answer->lse());
      ASSERT_EQ(got.size(), (end - start) * kHeads * kLatent);
      ASSERT_EQ(lse.size(), (end - start) * kHeads);
      for (uint64_t p = start; p < end; ++p) {
        const std::vector<float> query = DrawRow(kSeed + 1, layer, true, p, size_t{kHeads} * kRow);
        for (uint32_t head = 0; head < kHeads; ++head) {
          double sum = 0;
          std::vector<double> out(kLatent);
          for (uint64_t j = 0; j <= p; ++j) {
            const std::vector<float> row = LatentRow(layer, j);
            double dot = 0;
            for (uint32_t d = 0; d < kRow; ++d) dot += double{query[head * kRow + d]} * row[d];
            const double weight = std::exp(double{0.2f} * dot);
            sum += weight;
            for (uint32_t d = 0; d < kLatent; ++d) out[d] += weight * row[d];
          }
          const size_t at = (p - start) * kHeads + head;
          for (uint32_t d = 0; d < kLatent; ++d) {
            ASSERT_NEAR(got[at * kLatent + d], out[d] / sum, 1e-5) << "layer " << layer << " position " << p;
          }
          ASSERT_NEAR(lse[at], std::log(sum), 1e-5);
        }
      }
    }
  }

  TempDir folder_;
  CacheIdentity identity_;
  std::unique_ptr<ProcessCluster> cluster_;
};

TEST_F(EngineModelTest, LatentsAreAppendedAttendedToAndMovedAsWholeBlocks) {
  Start({.model_config = Config(LatentConfig())});
  const auto stub = cluster_->Stub(0);
  const auto opened = OpenSequence(*stub, identity_, Tokens(40));
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_EQ(opened->groups_size(), 1);
  EXPECT_EQ(opened->groups(0).group(), 0u);
  EXPECT_EQ(opened->groups(0).layers_size(), static_cast<int>(kLayers));
  const uint64_t sequence = opened->sequence_id();
  for (uint64_t start = 0; start < 40; start += 20) {
    const auto appended = AppendKv(*stub, LatentAppend(sequence, start, start + 20));
    ASSERT_TRUE(appended.ok()) << appended.status();
    EXPECT_EQ(appended->computed_tokens(), start + 20);
    ASSERT_NO_FATAL_FAILURE(ExpectLatentAttention(*stub, sequence, start, start + 20));
  }
  v1::AttendRequest attend = LatentAttend(sequence, 0, 39, 40);
  attend.set_scale(0);
  ExpectRefused(Attend(*stub, attend).status(), "scale: 0, must be given");
  attend = LatentAttend(sequence, 0, 39, 40);
  attend.set_head_sinks(std::string(size_t{kHeads} * sizeof(float), 's'));
  ExpectRefused(Attend(*stub, attend).status(), "head_sinks: not for attention over latents");
  attend.clear_head_sinks();
  attend.mutable_query()->resize(size_t{kHeads} * kLatent * sizeof(float));
  ExpectRefused(Attend(*stub, attend).status(), "query: 512 bytes, must be 192 fp32 values");
  v1::AppendKvRequest append = LatentAppend(sequence, 39, 40);
  append.set_key(append.value());
  ExpectRefused(AppendKv(*stub, append).status(), "key: 128 bytes, must be 64 fp32 values");
  append = LatentAppend(sequence, 39, 40);
  append.set_value(append.key());
  ExpectRefused(AppendKv(*stub, append).status(), "value: 256 bytes, must be 32 fp32 values");
  EXPECT_TRUE(CloseSequence(*stub, sequence).ok());
  CacheIdentity streaming = identity_;
  streaming.attention_policy = "sinks=4,window=28";
  ExpectRefused(OpenSequence(*stub, streaming, Tokens(40)).status(), "attention_policy");

  // The canonical block: [layer][token] rows.
  std::string blocks;
  for (uint64_t block = 0; block < 2; ++block) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint64_t token = 0; token < kBlock; ++token) blocks += FloatBytes(LatentRow(layer, block * kBlock + token));
    }
  }
  EXPECT_TRUE(GetBlocks(*stub, identity_, Tokens(40)).payload == blocks);
  CacheIdentity other = identity_;
  other.cache_salt = "other";
  const auto put = PutBlocks(*stub, other, Tokens(32), 0, blocks);
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(put->stored_blocks(), 2u);
  const auto again = OpenSequence(*stub, other, Tokens(34));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->computed_tokens(), 32u);
  ASSERT_TRUE(AppendKv(*stub, LatentAppend(again->sequence_id(), 32, 34)).ok());
  ASSERT_NO_FATAL_FAILURE(ExpectLatentAttention(*stub, again->sequence_id(), 32, 34));
  EXPECT_TRUE(CloseSequence(*stub, again->sequence_id()).ok());
  EXPECT_TRUE(cluster_->BooksAreClean());
  EXPECT_TRUE(cluster_->IndexEqualsWorkers());
}

// No layer attends to everything: the window's group is the first and only one.
TEST_F(EngineModelTest, EveryLayerSlides) {
  Start({.model_config = Config(SlidingConfig())});
  const auto stub = cluster_->Stub(0);
  const std::vector<uint32_t> tokens = Tokens(6 * kBlock);
  const auto block = [](char of) { return std::string(kEngineBlockBytes, of); };
  // After 4 blocks position 64 sees the whole of block 3. After 6, which are all, position 95 is computed again and
  // sees the last token of block 4.
  ASSERT_TRUE(PutBlocks(*stub, identity_, Tokens(4 * kBlock), 2, block('c') + block('d')).ok());
  ASSERT_TRUE(PutBlocks(*stub, identity_, tokens, 5, block('f'), 1).ok());
  const auto opened = OpenSequence(*stub, identity_, tokens);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->computed_tokens(), 64u);
  ASSERT_EQ(opened->groups_size(), 1);
  EXPECT_EQ(opened->groups(0).group(), 1u);
  EXPECT_EQ(opened->groups(0).window(), 17u);
  EXPECT_TRUE(CloseSequence(*stub, opened->sequence_id()).ok());
  const auto before = cluster_->Stats(0);
  EXPECT_EQ(GetBlocks(*stub, identity_, tokens).payload, "");
  const BlocksRead read = GetBlocks(*stub, identity_, tokens, LossyFormats(), {.first_block = 2, .blocks = 3});
  EXPECT_TRUE(read.payload == block('c') + block('d'));
  const auto after = cluster_->Stats(0);
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ(after->requested_tokens() - before->requested_tokens(), 9u * kBlock);
  EXPECT_EQ(after->hits().device() - before->hits().device(), 2u * kBlock);
  ExpectRefused(PutBlocks(*stub, identity_, tokens, 0, "", 0).status(), "group: 0, such sequences have 1");
  EXPECT_TRUE(cluster_->BooksAreClean());
}

// Blocks put for a stream are those that its sequences resume from.
TEST_F(EngineModelTest, StreamsTakeBlocksOfTheirOwnGroup) {
  Start({.model = false});
  identity_.attention_policy = "sinks=3,window=20";
  const auto stub = cluster_->Stub(0);
  const std::vector<uint32_t> tokens = Tokens(6 * kBlock);
  ASSERT_TRUE(PutBlocks(*stub, identity_, tokens, 4, std::string(2 * kEngineBlockBytes, 'w')).ok());
  const auto computed = [&]() -> uint64_t {
    const auto opened = OpenSequence(*stub, identity_, tokens);
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (!opened.ok()) return 0;
    EXPECT_EQ(opened->groups_size(), 1);
    EXPECT_EQ(opened->groups(0).group(), 1u);
    EXPECT_EQ(opened->groups(0).sinks(), 3u);
    EXPECT_TRUE(CloseSequence(*stub, opened->sequence_id()).ok());
    return opened->computed_tokens();
  };
  EXPECT_EQ(computed(), 0u);  // the sinks are not there
  const std::string sinks(kEngineBlockBytes, 's');
  ASSERT_TRUE(PutBlocks(*stub, identity_, Tokens(kBlock), 0, sinks, 1).ok());
  EXPECT_EQ(computed(), 6u * kBlock - 1);
  EXPECT_TRUE(GetBlocks(*stub, identity_, tokens).payload == sinks);
  ExpectRefused(GetBlocks(*stub, identity_, tokens, LossyFormats(), {.group = 0}).status, "group: 0");
  EXPECT_TRUE(cluster_->BooksAreClean());
}

TEST_F(EngineModelTest, WhatNoWorkerTakesEndsWithOneLineThatNamesTheField) {
  const auto start = [this](const std::string& config, const std::vector<std::string>& extra, const std::string& text) {
    std::vector<std::string> argv = {absl::StrCat(KVMESH_BIN_DIR, "/kvmesh-worker"), "--insecure", "--id", "w"};
    argv.insert(argv.end(), {"--model-config", config});
    argv.insert(argv.end(), extra.begin(), extra.end());
    const EndedProgram ended = RunProgram(folder_.path(), argv, kPatience);
    EXPECT_EQ(ended.code, 2) << ended.error;
    EXPECT_THAT(ended.error, HasSubstr(text));
  };
  const auto expect = [&](const json& changes, const std::vector<std::string>& extra, const std::string& text) {
    json config = SlidingConfig();
    for (const auto& [name, value] : changes.items()) config[name] = value;
    start(Config(config), extra, text);
  };
  expect({{"num_key_value_heads", 3}}, {}, "num_key_value_heads: 3 does not divide");
  expect({{"head_dim", 20}}, {}, "head_dim: 20 is not a multiple of 8");
  expect({{"head_dim", 264}}, {}, "head_dim");
  expect({{"layer_types", {"sliding_attention", "chunked_attention"}}}, {}, "layer_types: layer 1");
  expect({{"attention_chunk_size", 64}}, {}, "attention_chunk_size: not supported");
  expect({{"kv_lora_rank", 64}, {"qk_rope_head_dim", 16}}, {}, "sliding_window: not supported with kv_lora_rank");
  expect({{"kv_lora_rank", 1024}, {"qk_rope_head_dim", 16}, {"sliding_window", nullptr}}, {}, "kv_lora_rank");
  expect({}, {"--model", "m"}, "--model-config: not with --model");
  expect({}, {"--layers", "2"}, "--model-config: not with --layers");
  expect({}, {"--block-tokens", "0"}, "--block-tokens");
  start(folder_ / "absent.json", {}, "--model-config: ");
}

// What a worker's own model with windows has computed is carried to another worker group by group, with the last blocks
// of the window alone, and goes on there with the same tokens.
TEST_F(EngineModelTest, BlocksOfAModelWithWindowsMoveByHand) {
  json config = testing::TinyConfig();
  config["vocab_size"] = 256;
  config["sliding_window"] = 17;
  config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  std::vector<testing::NamedTensor> tensors = testing::TinyTensors();
  for (testing::NamedTensor& tensor : tensors) {
    if (tensor.shape[0] == 67) tensor.shape[0] = 256;
  }
  testing::WriteFile(folder_ / "config.json", config.dump());
  testing::WriteFile(folder_ / "model.safetensors", testing::RandomSafetensors(tensors, kSeed));
  const WorkerConfig worker{.model_dir = folder_.path()};
  cluster_ = std::make_unique<ProcessCluster>(ClusterConfig{.workers = {worker, worker}});
  ASSERT_TRUE(cluster_->Start());
  v1::GenerateRequest request;
  for (const uint32_t token : Tokens(100)) request.add_tokens(token % 256);
  const std::vector<uint32_t> prompt(request.tokens().begin(), request.tokens().end());
  request.set_max_tokens(8);
  const auto generate = [&](size_t i, uint64_t& computed) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    const auto stub = cluster_->Stub(i);
    const auto reader = stub->Generate(&context, request);
    std::vector<uint32_t> tokens;
    for (v1::GenerateResponse response; reader->Read(&response);) {
      if (response.has_start()) computed = response.start().computed_tokens();
      if (response.has_token()) tokens.push_back(response.token().id());
    }
    EXPECT_TRUE(reader->Finish().ok());
    return tokens;
  };
  uint64_t computed = 0;
  const std::vector<uint32_t> first = generate(0, computed);
  EXPECT_EQ(first.size(), 8u);
  EXPECT_EQ(computed, 0u);
  const auto workers = cluster_->client().ListWorkers();
  ASSERT_TRUE(workers.ok()) << workers.status();
  const auto identity = IdentityFromProto(workers->workers(0).info().model_identity());
  ASSERT_TRUE(identity.ok()) << identity.status();
  // 96 tokens are whole blocks; position 96 sees 80 and on.
  for (const BlockSpan& span : {BlockSpan{.group = 0}, BlockSpan{.first_block = 5, .blocks = 1, .group = 1}}) {
    const BlocksRead read = GetBlocks(*cluster_->Stub(0), *identity, prompt, LossyFormats(), span);
    EXPECT_TRUE(read.status.ok()) << read.status;
    EXPECT_EQ(read.blocks, 6 - span.first_block);
    const auto put = PutBlocks(*cluster_->Stub(1), *identity, prompt, span.first_block, read.payload, span.group);
    ASSERT_TRUE(put.ok()) << put.status();
    EXPECT_EQ(put->stored_blocks(), 6 - span.first_block);
  }
  EXPECT_EQ(generate(1, computed), first);
  EXPECT_EQ(computed, 96u);
  EXPECT_TRUE(cluster_->BooksAreClean());
}

// `kvmesh up --model-config`: its workers take that engine's sequences.
TEST_F(EngineModelTest, UpPassesItOn) {
  const std::string out = folder_ / "out";
  auto up = ChildProcess::Start(
      {absl::StrCat(KVMESH_BIN_DIR, "/kvmesh"), "up", "--workers", "1", "--model-config", Config(SlidingConfig())},
      folder_ / "log", out);
  ASSERT_TRUE(up.ok()) << up.status();
  std::string line;
  ASSERT_TRUE(Await(kPatience, [&] { return std::getline(std::ifstream(out), line) && line.starts_with("ready:"); }))
      << (*up)->LogTail();
  const std::string flag = "--coordinator ";
  ASSERT_THAT(line, HasSubstr(flag));
  const auto client = Client::Create({.coordinators = {line.substr(line.find(flag) + flag.size())},
                                      .tls = {.insecure = true},
                                      .tenant_secret = std::nullopt});
  ASSERT_TRUE(client.ok()) << client.status();
  const auto workers = (*client)->ListWorkers();
  ASSERT_TRUE(workers.ok()) << workers.status();
  ASSERT_EQ(workers->workers_size(), 1);
  identity_.block_tokens = kBlock;
  const auto opened = OpenSequence(*(*client)->WorkerAt(workers->workers(0).info().address()), identity_, Tokens(20));
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_EQ(opened->groups_size(), 1);
  EXPECT_EQ(opened->groups(0).window(), 17u);
  (*up)->Signal(SIGINT);
  EXPECT_EQ((*up)->AwaitExit(kPatience), 0) << (*up)->LogTail();
}

}  // namespace
}  // namespace kvmesh
