// Attention of a drawn World by the bodies of the CUDA kernels, on the host.
#ifndef KVMESH_TESTS_UNIT_KERNELS_CUDA_ATTENTION_ON_HOST_H_
#define KVMESH_TESTS_UNIT_KERNELS_CUDA_ATTENTION_ON_HOST_H_

#include <cmath>
#include <limits>
#include <vector>

#include "../attention_world.h"
#include "kernels/cuda/attention_args.h"
#include "simulated_machine.h"

namespace kvmesh::cuda {

struct Results {
  std::vector<float> out;
  std::vector<float> lse;
};

// Arguments of a call and the memory that they point at. Results and partial states start as NaN.
struct HostCall {
  HostCall(std::span<const AttentionSequence> from, std::span<const float> query, const AttentionParams& params,
           int32_t layer, const KvPoolView& pool, int32_t value_dim) {
    int64_t first = 0, length = 0;
    for (const AttentionSequence& s : from) {
      sequences.push_back({s.block_table.data(), s.first_position, s.queries, first});
      first += s.queries;
      most_queries = std::max(most_queries, s.queries);
      length = std::max(length, s.first_position + s.queries);
    }
    args.query = query.data();
    args.sinks = params.sinks.empty() ? nullptr : params.sinks.data();
    args.sequences = sequences.data();
    args.pool = pool;
    args.window = params.window;
    args.scale = params.scale;
    args.soft_cap = params.soft_cap;
    args.layer = layer;
    args.batch = static_cast<int32_t>(from.size());
    args.q_heads = params.q_heads;
    args.value_dim = value_dim;
    args.max_queries = static_cast<int32_t>(std::min(most_queries, kSplitQueries));
    args.spans = static_cast<int32_t>(MostSpans(length, args.max_queries, params.window));
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const size_t rows = static_cast<size_t>(first) * params.q_heads;
    results.out.assign(rows * value_dim, nan);
    results.lse.assign(rows, nan);
    partial_lse.assign(static_cast<size_t>(args.Partial(args.batch, 0, 0, 0)), nan);
    partial_out.assign(partial_lse.size() * value_dim, nan);
    args.out = results.out.data();
    args.lse = results.lse.data();
    args.partial_out = partial_out.data();
    args.partial_lse = partial_lse.data();
  }
  HostCall(const HostCall&) = delete;

  // Launches `split` for the split sequences, `whole` for the others, each with its rows of a tile, then the merge.
  template <class Split, class Whole>
  void Run(int32_t split_rows, int32_t whole_rows, int split_threads, int whole_threads, size_t shared, uint64_t seed,
           Split split, Whole whole) {
    const int64_t heads = int64_t{args.batch} * args.pool.layout.kv_heads;
    args.row_tiles = (args.max_queries * args.group() + split_rows - 1) / split_rows;
    if (args.row_tiles > 0) {
      Simulate(heads * args.row_tiles, args.spans, split_threads, shared, seed, [&](Simulated& m) { split(m, args); });
      Simulate(int64_t{args.batch} * args.max_queries * args.q_heads, 1, 32, 0, seed,
               [&](Simulated& m) { MergeSpansBody(m, args); });
    }
    if (most_queries <= kSplitQueries) return;
    args.row_tiles = static_cast<int32_t>((most_queries * args.group() + whole_rows - 1) / whole_rows);
    Simulate(heads * args.row_tiles, 1, whole_threads, shared, seed + 1, [&](Simulated& m) { whole(m, args); });
  }

  std::vector<DeviceSequence> sequences;
  int64_t most_queries = 0;
  AttentionArgs args;
  Results results;
  std::vector<float> partial_out;
  std::vector<float> partial_lse;
};

}  // namespace kvmesh::cuda

#endif  // KVMESH_TESTS_UNIT_KERNELS_CUDA_ATTENTION_ON_HOST_H_
