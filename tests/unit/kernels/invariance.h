// Row invariance as the tests of attention check it: a query has the same bits whatever stands beside it in a call.
#ifndef KVMESH_TESTS_UNIT_KERNELS_INVARIANCE_H_
#define KVMESH_TESTS_UNIT_KERNELS_INVARIANCE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <random>
#include <thread>
#include <vector>

#include "attention_result.h"
#include "kernels/paged_attention.h"

namespace kvmesh {

// One is a sequence with a query at each of its positions:
//   Result Attend(sequences, query)    of any shares of the sequence
//   Queries(first, count)              the queries at these positions
//   table()                            its blocks
template <class One>
Result AttendPart(const One& one, int64_t first, int64_t count) {
  const AttentionSequence sequence{one.table(), first, count};
  return one.Attend({&sequence, 1}, one.Queries(first, count));
}

// all: the result of `tokens` queries in one call, as in the following.
template <class One>
void ExpectChunksEqual(const One& one, const Result& all, int64_t tokens, std::initializer_list<int64_t> chunks) {
  for (const int64_t chunk : chunks) {
    for (int64_t i = 0; i < tokens; i += chunk) {
      const int64_t count = std::min(chunk, tokens - i);
      ASSERT_TRUE(SameBits(AttendPart(one, i, count), all.Slice(i, count, tokens))) << "queries " << i << "+" << count;
    }
  }
}

template <class One>
void ExpectBatchesEqual(const One& one, const Result& all, int64_t tokens, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int batch = 0; batch < 20; ++batch) {
    std::vector<AttentionSequence> sequences;
    std::vector<float> query;
    Result want;
    for (uint64_t n = 1 + random() % 6; n > 0; --n) {
      const int64_t first = static_cast<int64_t>(random() % static_cast<uint64_t>(tokens));
      const int64_t count =
          static_cast<int64_t>(random() % static_cast<uint64_t>(std::min<int64_t>(tokens - first, 20)));
      sequences.push_back({one.table(), first, count});
      const auto part = one.Queries(first, count);
      query.insert(query.end(), part.begin(), part.end());
      want.Append(all.Slice(first, count, tokens));
    }
    ASSERT_TRUE(SameBits(one.Attend(sequences, query), want)) << "seed " << seed << " batch " << batch;
  }
}

template <class One>
void ExpectThreadsEqual(const One& one, const Result& all, int64_t tokens) {
  std::vector<char> same(4, 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = t; i < tokens; i += 5) {
        if (!SameBits(AttendPart(one, i, 1), all.Slice(i, 1, tokens))) same[static_cast<size_t>(t)] = 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, std::vector<char>(4, 1));
}

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_KERNELS_INVARIANCE_H_
