// One forward pass: from the tokens of a batch to the logits of its wanted rows, through a paged pool.
#ifndef KVMESH_WORKER_MODEL_FORWARD_PASS_H_
#define KVMESH_WORKER_MODEL_FORWARD_PASS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/kv_pool_view.h"
#include "kernels/paged_attention.h"
#include "kernels/rope.h"
#include "worker/model/forward_batch.h"
#include "worker/model/llama_config.h"
#include "worker/model/llama_weights.h"
#include "worker/model/parallel_for.h"
#include "worker/model/row_kernels.h"

namespace kvmesh {

// What a pass reads of a model. Owned by the model.
struct ForwardModel {
  const LlamaConfig& config;
  const LlamaWeights& weights;
  const RowKernels& kernels;
  const RopeTable& rope;
};

// The state of one pass; used once, by one thread, which runs parts on the runner's.
//
// The tokens of the batch are rows, sequences one after the other. Rows are cut into blocks, and each step below runs
// block by block in parallel. Steps of layer l, with one barrier before each:
//   Finish(l - 1)   attention, output projection, MLP
//   Project(l)      norm, q/k/v, rotation, append of K/V to the pool
// Both run back to back on a block, so all K/V of layer l are in the pool before the first attention of layer l. How
// rows are cut has no influence on any bit: every kernel is row-invariant.
class ForwardPass {
 public:
  // REQUIRES: CheckForwardBatch(batch, model.config, pools).ok().
  ForwardPass(const ForwardModel& model, std::span<const ForwardSequence> batch, std::span<const KvPoolView> pools,
              ParallelRunner& runner);

  Logits Run();

 private:
  // A row's token, by the sequence that it is of.
  struct Row {
    int32_t sequence;
    int64_t position;
  };
  // A layer's group, and its place among the group's layers.
  struct LayerPlace {
    size_t group;
    int32_t layer;
  };
  // Rows [begin, end).
  struct RowBlock {
    int64_t begin;
    int64_t end;
    int64_t size() const { return end - begin; }
  };

  void ForEachBlock(const std::function<void(RowBlock)>& work);
  void Embed(RowBlock block);
  void Project(int32_t layer, RowBlock block);
  void Finish(int32_t layer, RowBlock block);
  // Attention of the block's queries; out: [block.size(), heads, head_dim].
  void Attend(int32_t layer, RowBlock block, std::span<float> out);
  AttentionParams ParamsOf(int32_t layer) const;
  const StreamingPolicy& PolicyOf(int64_t row) const {
    return batch_[static_cast<size_t>(rows_[static_cast<size_t>(row)].sequence)].policy;
  }
  // Drops the rows whose logits nobody wants; called when the last layer's K/V are written.
  void KeepWanted();
  void WriteLogits(RowBlock block, Logits& out);

  float* Residual(int64_t row) { return residual_.data() + row * model_.config.hidden_size; }
  float* Query(int64_t row) { return query_.data() + row * model_.config.query_width(); }
  float* SinkQuery(int64_t row) { return sink_query_.data() + row * model_.config.query_width(); }

  const ForwardModel& model_;
  const std::span<const ForwardSequence> batch_;
  const std::span<const KvPoolView> pools_;
  ParallelRunner& runner_;
  std::vector<LayerPlace> places_;  // by layer
  std::vector<Row> rows_;
  std::vector<float> residual_;    // [rows, hidden_size]
  std::vector<float> query_;       // [rows, heads, head_dim], rotated
  const bool streams_;             // some sequence has a policy
  std::vector<float> sink_query_;  // as query_, rotated for the sinks outside a window; empty unless streams_
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_MODEL_FORWARD_PASS_H_
