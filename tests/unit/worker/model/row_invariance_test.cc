// Contract 14: logits and K/V bits of a position are the same whatever the chunking, batch, thread count or resume
// point.
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/kv_format.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/worker/model/local_runner.h"
#include "tests/unit/worker/model/tiny_model.h"

namespace kvmesh::testing {
namespace {

constexpr uint32_t kSeed = 1611;
constexpr int64_t kPrompt = 70;

// What a run of a prompt leaves: logits of all positions it computed, and the pool's bytes.
struct Outcome {
  std::vector<float> logits;  // [positions, vocab]
  std::vector<std::byte> pool;
};

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// One model folder under each pool format.
struct World {
  std::string name;
  KvFormat format;
};

class RowInvarianceTest : public ::testing::TestWithParam<World> {
 protected:
  void SetUp() override {
    const std::string& name = GetParam().name;
    dir_ = name == "shipped" ? ShippedDir() : name == "stories" ? StoriesDir() : tiny_.path();
    if (dir_.empty()) GTEST_SKIP() << "no model of this name";
    if (name == "tiny") WriteTinyModel(dir_);
    model_ = Load(1);
    std::mt19937 random(kSeed);
    for (int64_t i = 0; i < kPrompt; ++i) prompt_.push_back(random() % model_->config().vocab_size);
  }

  std::unique_ptr<LlamaModel> Load(int32_t threads) {
    absl::StatusOr<std::unique_ptr<LlamaModel>> model = LlamaModel::Load(dir_, {.threads = threads});
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  BlockLayout Layout(int32_t block_tokens = 16) const {
    return model_->config().CacheLayout(GetParam().format, block_tokens);
  }

  // Computes the prompt in passes that end at `ends` (ascending, the last one is kPrompt).
  Outcome RunPasses(const LlamaModel& model, const std::vector<int64_t>& ends, int32_t block_tokens = 16) {
    const PlainPool pool(Layout(block_tokens), (kPrompt + block_tokens - 1) / block_tokens);
    LocalSequence sequence(pool.view(), 0, kPrompt);
    Outcome out;
    int64_t begin = 0;
    for (const int64_t end : ends) {
      const auto tokens = std::span(prompt_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      const Logits logits = MustForward(model, pool.view(), sequence.Next(tokens, LogitsWanted::kAll));
      out.logits.insert(out.logits.end(), logits.values.begin(), logits.values.end());
      begin = end;
    }
    out.pool = pool.bytes();
    return out;
  }

  // K/V of every sequence are those that `whole` left on blocks of 16 tokens.
  void ExpectSamePool(const PlainPool& pool, const std::vector<LocalSequence>& sequences, const Outcome& whole) {
    const BlockLayout layout = Layout(), other = pool.view().layout;
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (int64_t p = 0; p < kPrompt; ++p) {
        const int64_t slot = sequences[s].Slot(p);
        for (int64_t part = 0; part < int64_t{layout.layers} * 2 * layout.kv_heads; ++part) {
          const int64_t layer = part / (2 * layout.kv_heads), kv = part / layout.kv_heads % 2;
          const int64_t head = part % layout.kv_heads;
          const std::byte* got = pool.view().At(slot / other.block_tokens, layer, kv, head, slot % other.block_tokens);
          const std::byte* expected =
              whole.pool.data() + p / 16 * layout.block_bytes + layout.Offset(layer, kv, head, p % 16);
          ASSERT_EQ(std::memcmp(got, expected, static_cast<size_t>(layout.token_stride)), 0)
              << "sequence " << s << " position " << p << " layer " << layer << ", seed " << kSeed;
          if (layout.scale_group == 0) continue;
          got = pool.view().base + slot / other.block_tokens * pool.view().slot_stride +
                other.ScaleOffset(layer, kv, head, slot % other.block_tokens);
          expected = whole.pool.data() + p / 16 * layout.block_bytes + layout.ScaleOffset(layer, kv, head, p % 16);
          ASSERT_EQ(std::memcmp(got, expected, static_cast<size_t>(layout.scale_token_stride)), 0)
              << "descales of sequence " << s << " position " << p << " layer " << layer << ", seed " << kSeed;
        }
      }
    }
  }

  TempDir tiny_;
  std::string dir_;
  std::unique_ptr<LlamaModel> model_;
  std::vector<uint32_t> prompt_;
};

// Every format on the tiny model, whose rows of 8 are shorter than a group of int4, and on the trained ones what the
// quality of answers is stated for.
std::vector<World> Worlds() {
  std::vector<World> worlds;
  for (const KvFormat format : kKvFormats) worlds.push_back({"tiny", format});
  for (const std::string& name : {std::string("stories"), std::string("shipped")}) {
    for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8}) worlds.push_back({name, format});
  }
  return worlds;
}
INSTANTIATE_TEST_SUITE_P(Models, RowInvarianceTest, ::testing::ValuesIn(Worlds()), [](const auto& info) {
  return absl::StrCat(info.param.name, "_", std::string(KvFormatName(info.param.format)));
});

TEST_P(RowInvarianceTest, EverySplitOfThePromptInTwo) {
  const Outcome whole = RunPasses(*model_, {kPrompt});
  for (int64_t split = 1; split < kPrompt; ++split) {
    const Outcome cut = RunPasses(*model_, {split, kPrompt});
    ASSERT_TRUE(SameBits(cut.logits, whole.logits)) << "split at " << split << " seed " << kSeed;
    ASSERT_EQ(cut.pool, whole.pool) << "split at " << split << " seed " << kSeed;
  }
}

TEST_P(RowInvarianceTest, TokenByToken) {
  std::vector<int64_t> ends(kPrompt);
  std::iota(ends.begin(), ends.end(), 1);
  const Outcome whole = RunPasses(*model_, {kPrompt});
  const Outcome cut = RunPasses(*model_, ends);
  EXPECT_TRUE(SameBits(cut.logits, whole.logits)) << "seed " << kSeed;
  EXPECT_EQ(cut.pool, whole.pool) << "seed " << kSeed;
}

TEST_P(RowInvarianceTest, RandomChunksOnAnyNumberOfThreads) {
  const Outcome whole = RunPasses(*model_, {kPrompt});
  for (const int32_t threads : {1, 2, 3, 5}) {
    const std::unique_ptr<LlamaModel> model = Load(threads);
    for (uint32_t round = 0; round < 8; ++round) {
      const uint32_t seed = kSeed + round;
      std::mt19937 random(seed);
      std::vector<int64_t> ends;
      for (int64_t end = 0; end < kPrompt;) {
        end = std::min<int64_t>(kPrompt, end + 1 + random() % (round == 0 ? kPrompt : 24));
        ends.push_back(end);
      }
      const Outcome cut = RunPasses(*model, ends);
      ASSERT_TRUE(SameBits(cut.logits, whole.logits)) << threads << " threads, seed " << seed;
      ASSERT_EQ(cut.pool, whole.pool) << threads << " threads, seed " << seed;
    }
  }
}

TEST_P(RowInvarianceTest, AnyBlockSize) {
  const Outcome whole = RunPasses(*model_, {kPrompt});
  for (const int32_t block_tokens : {1, 8, 32, 128}) {
    const Outcome other = RunPasses(*model_, {33, kPrompt}, block_tokens);
    EXPECT_TRUE(SameBits(other.logits, whole.logits)) << block_tokens << " tokens a block, seed " << kSeed;
  }
}

// Several sequences of one batch, at different positions, over shuffled blocks of one pool.
TEST_P(RowInvarianceTest, BatchesOfSeveralSequences) {
  const Outcome whole = RunPasses(*model_, {kPrompt});
  constexpr int64_t kSequences = 5, kBlocksEach = (kPrompt + 7) / 8;
  for (const int32_t threads : {1, 3}) {
    const std::unique_ptr<LlamaModel> model = Load(threads);
    std::mt19937 random(kSeed);
    std::vector<uint32_t> blocks(kSequences * kBlocksEach);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random);
    const PlainPool pool(Layout(8), static_cast<int64_t>(blocks.size()));
    std::vector<LocalSequence> sequences;
    for (int64_t s = 0; s < kSequences; ++s) {
      const auto first = blocks.begin() + s * kBlocksEach;
      sequences.emplace_back(pool.view(), std::vector<uint32_t>(first, first + kBlocksEach));
    }
    // All run the same prompt at their own pace, so that all answers are known.
    std::vector<int64_t> done(kSequences);
    while (*std::min_element(done.begin(), done.end()) < kPrompt) {
      std::vector<ForwardSequence> batch;
      std::vector<int64_t> members;
      for (int64_t s = 0; s < kSequences; ++s) {
        const int64_t count = std::min<int64_t>(kPrompt - done[s], random() % 20);
        if (count == 0) continue;
        const auto tokens = std::span(prompt_).subspan(static_cast<size_t>(done[s]), static_cast<size_t>(count));
        const auto wanted = static_cast<LogitsWanted>(random() % 3);
        batch.push_back(sequences[static_cast<size_t>(s)].Next(tokens, wanted));
        members.push_back(s);
        done[s] += count;
      }
      if (batch.empty()) continue;
      const Logits logits = MustForward(*model, pool.view(), batch);
      ASSERT_EQ(logits.rows, WantedRows(batch));
      int64_t row = 0;
      for (size_t i = 0; i < batch.size(); ++i) {
        const auto count = static_cast<int64_t>(batch[i].tokens.size());
        const int64_t rows = batch[i].logits == LogitsWanted::kAll ? count : batch[i].logits == LogitsWanted::kLast;
        for (int64_t p = done[members[i]] - rows; p < done[members[i]]; ++p, ++row) {
          const auto expected = std::span(whole.logits).subspan(p * logits.vocab_size, logits.vocab_size);
          ASSERT_TRUE(SameBits(logits.row(row), expected)) << "position " << p << ", seed " << kSeed;
        }
      }
      ASSERT_EQ(row, logits.rows);
    }
    ExpectSamePool(pool, sequences, whole);
  }
}

// A sequence that starts from another's blocks, as after a hit: shares whole blocks, computes the rest in its own.
TEST_P(RowInvarianceTest, ResumedFromSharedBlocks) {
  const Outcome whole = RunPasses(*model_, {kPrompt});
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  const PlainPool pool(Layout(8), 32);
  LocalSequence first(pool.view(), 0, kPrompt);
  MustForward(*model_, pool.view(), first.Next(prompt_));
  for (int64_t cached = 8; cached < kPrompt; cached += 8) {
    std::vector<uint32_t> table = first.block_table();
    for (size_t i = static_cast<size_t>(cached) / 8; i < table.size(); ++i) table[i] += 16;
    LocalSequence second(pool.view(), table);
    second.ResumeAt(cached);
    const auto rest = std::span(prompt_).subspan(static_cast<size_t>(cached));
    const Logits logits = MustForward(*model_, pool.view(), second.Next(rest, LogitsWanted::kAll));
    EXPECT_TRUE(SameBits(logits.values, std::span(whole.logits).subspan(static_cast<size_t>(cached) * vocab)))
        << "cached " << cached << ", seed " << kSeed;
  }
}

// Contract 4: a prompt that is cached whole computes its last token without a write.
TEST_P(RowInvarianceTest, LastTokenWithoutAWrite) {
  const Outcome whole = RunPasses(*model_, {kPrompt});
  const PlainPool pool(Layout(), (kPrompt + 15) / 16);
  LocalSequence sequence(pool.view(), 0, kPrompt);
  MustForward(*model_, pool.view(), sequence.Next(prompt_, LogitsWanted::kNone));
  EXPECT_EQ(pool.bytes(), whole.pool);
  sequence.ResumeAt(kPrompt - 1);
  ForwardSequence last = sequence.Next(std::span(prompt_).last(1));
  const int64_t skip = -1;
  last.groups[0].slot_mapping = std::span(&skip, 1);
  const Logits logits = MustForward(*model_, pool.view(), last);
  EXPECT_EQ(pool.bytes(), whole.pool);
  EXPECT_TRUE(SameBits(logits.values, std::span(whole.logits).last(static_cast<size_t>(logits.vocab_size))));
}

// Passes that run at once share the threads.
TEST_P(RowInvarianceTest, PassesAtTheSameTime) {
  const Outcome whole = RunPasses(*model_, {kPrompt});
  const std::unique_ptr<LlamaModel> model = Load(3);
  std::vector<Outcome> outcomes(4);
  std::vector<std::thread> threads;
  for (Outcome& outcome : outcomes) {
    threads.emplace_back([&] { outcome = RunPasses(*model, {5, 41, kPrompt}); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(SameBits(outcome.logits, whole.logits));
    EXPECT_EQ(outcome.pool, whole.pool);
  }
}

}  // namespace
}  // namespace kvmesh::testing
