#include "kernels/cuda/attention_args.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace kvmesh::cuda {
namespace {

// Number of tiles that have a (sequence, query, head, key), by brute force.
using Covered = std::map<std::tuple<int64_t, int64_t, int32_t, int64_t>, int>;

template <bool kSplit>
void Cover(const AttentionArgs& args, int32_t rows, int64_t spans, Covered& covered) {
  const int64_t blocks = int64_t{args.batch} * args.row_tiles * args.pool.layout.kv_heads;
  for (int64_t y = 0; y < spans; ++y) {
    for (int64_t x = 0; x < blocks; ++x) {
      const AttentionTile tile = TileOf<kSplit>(args, rows, x, y);
      for (int32_t r = 0; r < tile.count; ++r) {
        const Keys seen = VisibleKeys(tile.Position(r, args.group()), args.window);
        for (int64_t key = std::max(seen.begin, tile.keys.begin); key < std::min(seen.end, tile.keys.end); ++key) {
          ++covered[{tile.index, tile.Query(r, args.group()), tile.Head(r, args.group()), key}];
        }
      }
    }
  }
}

TEST(AttentionArgsTest, TilesHoldEveryRowAndVisibleKeyOnce) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const int64_t windows[] = {0, 1, 40, 512, 513, 900};
    AttentionArgs args;
    args.pool.layout = CanonicalLayout(KvFormat::kBf16, 1, static_cast<int32_t>(1 + random() % 2), 16, 8);
    args.q_heads = args.pool.layout.kv_heads * static_cast<int32_t>(1 + random() % 3);
    args.window = windows[random() % 6];
    args.batch = 3;
    std::vector<DeviceSequence> sequences;
    int64_t most = 0, length = 0;
    for (int i = 0; i < args.batch; ++i) {
      const int64_t queries = static_cast<int64_t>(random() % 3 == 0 ? random() % 40 : random() % 4);
      sequences.push_back({nullptr, static_cast<int64_t>(random() % 1500) - 2, queries, 0});
      most = std::max(most, queries);
      length = std::max(length, sequences.back().first_position + queries);
    }
    args.sequences = sequences.data();
    args.max_queries = static_cast<int32_t>(std::min(most, kSplitQueries));
    args.spans = static_cast<int32_t>(MostSpans(length, args.max_queries, args.window));
    Covered covered;
    args.row_tiles = (args.max_queries * args.group() + 15) / 16;
    if (args.row_tiles > 0) Cover<true>(args, 16, args.spans, covered);
    args.row_tiles = static_cast<int32_t>((most * args.group() + 63) / 64);
    if (args.row_tiles > 0) Cover<false>(args, 64, 1, covered);

    Covered want;
    for (int64_t s = 0; s < args.batch; ++s) {
      for (int64_t q = 0; q < sequences[s].queries; ++q) {
        const int64_t position = sequences[s].first_position + q;
        for (int64_t key = 0; key <= position; ++key) {
          if (args.window > 0 && position - key >= args.window) continue;
          for (int32_t head = 0; head < args.q_heads; ++head) want[{s, q, head, key}] = 1;
        }
      }
    }
    ASSERT_TRUE(want == covered);
  }
}

TEST(AttentionArgsTest, SinkJoinsTheSumWithoutAValue) {
  EXPECT_EQ(FinishRow({}, kEmptyLse).factor, 0.0f);
  EXPECT_EQ(FinishRow({}, kEmptyLse).lse, kEmptyLse);
  EXPECT_EQ(FinishRow({}, 2.5f).factor, 0.0f);
  EXPECT_EQ(FinishRow({}, 2.5f).lse, 2.5f);
  // exp(1) + exp(1) keys against a sink of exp(1): a third less.
  const RowResult row = FinishRow({1.0f, 2.0f}, 1.0f);
  EXPECT_FLOAT_EQ(row.factor, 1.0f / 3);
  EXPECT_FLOAT_EQ(row.lse, 1 + std::log(3.0f));
}

}  // namespace
}  // namespace kvmesh::cuda
