#include "kernels/attention_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "attention_world.h"

namespace kvmesh {
namespace {

AttentionCall CallOf(const World& w, Result& to) {
  to = Result(w.query.size(), w.rows);
  return {w.query, 1, w.params, w.pool.view(), to.out, to.lse};
}

Result Whole(const World& w) {
  Result out;
  const AttentionCall call = CallOf(w, out);
  PagedAttention(call.query, w.sequences, call.layer, call.params, call.pool, call.out, call.lse);
  return out;
}

TEST(AttentionPlanTest, PartsInAnyOrderAndCutHaveTheBitsOfTheWhole) {
  const int64_t starts[] = {-2, 0, 100, kSpanTokens - 1, kSpanTokens, 2 * kSpanTokens + 5, 3 * kSpanTokens + 100};
  const int64_t windows[] = {0, 0, 100, kSpanTokens, kSpanTokens + 77};
  const KvFormat formats[] = {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8, KvFormat::kFp8E4m3};
  size_t cuts = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    std::mt19937_64 random(seed);
    Case c{.format = formats[seed % 4],
           .kv_heads = static_cast<int32_t>(1 + random() % 3),
           .group = static_cast<int32_t>(1 + random() % 4),
           .head_dim = random() % 2 ? 64 : 16,
           .window = windows[random() % 5],
           .sinks = random() % 2 == 0,
           .shares = {},
           .seed = seed};
    for (uint64_t n = 1 + random() % 2; n > 0; --n) {
      c.shares.push_back({starts[random() % 7], static_cast<int64_t>(1 + random() % 3)});
    }
    SCOPED_TRACE(c.Describe());
    const World w(c);
    const Result want = Whole(w);
    for (const AttentionPlanOptions options :
         {AttentionPlanOptions{.threads = 1}, AttentionPlanOptions{.threads = 3}, AttentionPlanOptions{.threads = 64},
          AttentionPlanOptions{.threads = 64, .workspace_floats = 3000}}) {
      const AttentionPlan plan(w.sequences, w.params, w.pool.view(), options);
      ASSERT_LE(plan.workspace_floats(), options.workspace_floats);
      cuts += plan.workspace_floats() > 0;
      std::vector<float> workspace(static_cast<size_t>(plan.workspace_floats()));
      std::vector<int> order(static_cast<size_t>(plan.parts()));
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      Result got;
      const AttentionCall call = CallOf(w, got);
      for (const int part : order) ASSERT_EQ(plan.RunPart(part, call, workspace), "");
      ASSERT_EQ(plan.Finish(call, workspace), "");
      ASSERT_TRUE(SameBits(got, want)) << "threads " << options.threads;
    }
  }
  EXPECT_GT(cuts, 10u);
}

TEST(AttentionPlanTest, ThreadsHaveTheBitsOfTheWhole) {
  const World w({.format = KvFormat::kBf16, .kv_heads = 2, .group = 2, .shares = {{4 * kSpanTokens, 1}}, .seed = 1});
  const Result want = Whole(w);
  const AttentionPlan plan(w.sequences, w.params, w.pool.view(), {.threads = 4});
  ASSERT_EQ(plan.parts(), 5 * 2);
  EXPECT_EQ(plan.workspace_floats(), 5 * 4 * (64 + 1));
  std::vector<float> workspace(static_cast<size_t>(plan.workspace_floats()));
  Result got;
  const AttentionCall call = CallOf(w, got);
  std::vector<std::string> refusals(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int part = t; part < plan.parts(); part += 4)
        refusals[static_cast<size_t>(t)] += plan.RunPart(part, call, workspace);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refusals, std::vector<std::string>(4));
  ASSERT_EQ(plan.Finish(call, workspace), "");
  EXPECT_TRUE(SameBits(got, want));
}

TEST(AttentionPlanTest, ShortSequencesAreNotCut) {
  const World w({.shares = {{100, 1}, {0, 200}}, .seed = 2});
  const AttentionPlan plan(w.sequences, w.params, w.pool.view(), {.threads = 8});
  EXPECT_EQ(plan.workspace_floats(), 0);
  EXPECT_EQ(plan.parts(), 3);  // one query, 128 queries, 72 queries
  EXPECT_EQ(AttentionPlan({}, w.params, w.pool.view(), {}).parts(), 0);
}

TEST(AttentionPlanTest, OtherParametersAreRefusedByName) {
  const Case c{.kv_heads = 2, .group = 2, .window = 128, .shares = {{300, 1}}, .seed = 3};
  World w(c);
  const AttentionPlan plan(w.sequences, w.params, w.pool.view(), {.threads = 2});
  Result got;
  const AttentionCall call = CallOf(w, got);
  ASSERT_EQ(plan.RunPart(0, call, {}), "");
  const Result before = got;
  const auto refusal = [&](auto change) {
    AttentionCall other = call;
    change(other);
    EXPECT_EQ(plan.RunPart(0, other, {}), plan.Refusal(other));
    EXPECT_EQ(plan.Finish(other, {}), plan.Refusal(other));
    EXPECT_TRUE(SameBits(got, before));
    return plan.Refusal(other);
  };
  const std::vector<float> sinks(4);
  EXPECT_EQ(refusal([](AttentionCall& o) { o.params.window = 64; }), "window is 64, the plan's is 128");
  EXPECT_EQ(refusal([](AttentionCall& o) { o.params.window = 0; }), "window is 0, the plan's is 128");
  EXPECT_EQ(refusal([](AttentionCall& o) { o.params.q_heads = 8; }), "q_heads is 8, the plan's is 4");
  EXPECT_EQ(refusal([&](AttentionCall& o) { o.params.sinks = sinks; }), "the plan has no sinks");
  EXPECT_EQ(refusal([](AttentionCall& o) { o.pool.layout.format = KvFormat::kBf16; }), "format is 3, the plan's is 1");
  EXPECT_EQ(refusal([](AttentionCall& o) { o.pool.layout.block_tokens = 8; }), "block_tokens is 8, the plan's is 16");
  EXPECT_EQ(refusal([](AttentionCall& o) { o.pool.layout.head_dim = 8; }), "head_dim is 8, the plan's is 64");
  EXPECT_EQ(refusal([](AttentionCall& o) { o.pool.layout.kv_stride += 64; }),
            "the layout's strides are not the plan's");
  EXPECT_EQ(refusal([](AttentionCall& o) { o.pool.slots += 1; }).substr(0, 5), "slots");
  // What differs between layers is not the plan's business.
  AttentionCall other = call;
  other.layer = 0;
  other.params.scale *= 2;
  other.params.soft_cap = 3;
  EXPECT_EQ(plan.Refusal(other), "");
}

using AttentionPlanDeathTest = testing::Test;

TEST(AttentionPlanDeathTest, BrokenRequirementsAbort) {
  World w({.shares = {{2 * kSpanTokens, 1}}, .seed = 10});
  const AttentionPlan plan(w.sequences, w.params, w.pool.view(), {.threads = 2});
  Result out;
  AttentionCall call = CallOf(w, out);
  EXPECT_DEATH(static_cast<void>(plan.RunPart(0, call, {})), "workspace too small");
  std::vector<float> workspace(static_cast<size_t>(plan.workspace_floats()));
  EXPECT_DEATH(static_cast<void>(plan.RunPart(plan.parts(), call, workspace)), "part out of range");
  call.out = call.out.first(1);
  EXPECT_DEATH(static_cast<void>(plan.Finish(call, workspace)), "query and out");
  w.tables[0].back() = 100000;
  EXPECT_DEATH(AttentionPlan(w.sequences, w.params, w.pool.view(), {}), "block id outside");
}

}  // namespace
}  // namespace kvmesh
