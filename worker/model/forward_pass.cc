#include "worker/model/forward_pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/paged_attention.h"
#include "kernels/reshape_and_cache.h"
#include "kernels/streaming_attention.h"

namespace kvmesh {
namespace {

// A block's scratch stays in the second-level cache; its rows are a multiple of every kernel's tile where there are
// many.
constexpr int64_t kTileMultiple = 12;
constexpr int64_t kMaxBlockRows = 48;

// Rows of a block. Few rows are shared out evenly; many are cut finer, since attention costs more at later positions.
int64_t BlockRows(int64_t rows, int64_t threads) {
  if (threads == 1) return kMaxBlockRows;
  const int64_t even = (rows + threads - 1) / threads;
  if (even <= kTileMultiple) return even;
  const int64_t tiles = (even / 2 + kTileMultiple - 1) / kTileMultiple;
  return std::min(tiles * kTileMultiple, kMaxBlockRows);
}

// Uninitialized floats.
class Scratch {
 public:
  explicit Scratch(int64_t size) : size_(static_cast<size_t>(size)), data_(new float[size_]) {}
  float* data() { return data_.get(); }
  std::span<float> span() { return {data_.get(), size_}; }

 private:
  size_t size_;
  std::unique_ptr<float[]> data_;
};

}  // namespace

ForwardPass::ForwardPass(const ForwardModel& model, std::span<const ForwardSequence> batch,
                         std::span<const KvPoolView> pools, ParallelRunner& runner)
    : model_(model),
      batch_(batch),
      pools_(pools),
      runner_(runner),
      places_(static_cast<size_t>(model.config.layers)),
      streams_(std::any_of(batch.begin(), batch.end(),
                           [](const ForwardSequence& sequence) { return sequence.policy.streams(); })) {
  for (size_t group = 0; group < model.config.groups.size(); ++group) {
    int32_t within = 0;
    for (const int32_t layer : model.config.groups[group].layers) {
      places_[static_cast<size_t>(layer)] = {group, within++};
    }
  }
  for (size_t s = 0; s < batch.size(); ++s) {
    for (size_t i = 0; i < batch[s].tokens.size(); ++i) {
      rows_.push_back({static_cast<int32_t>(s), batch[s].first_position + static_cast<int64_t>(i)});
    }
  }
  residual_.resize(rows_.size() * static_cast<size_t>(model.config.hidden_size));
  query_.resize(rows_.size() * static_cast<size_t>(model.config.query_width()));
  if (streams_) sink_query_.resize(query_.size());
}

Logits ForwardPass::Run() {
  Logits out;
  out.rows = WantedRows(batch_);
  out.vocab_size = model_.config.vocab_size;
  out.values.resize(static_cast<size_t>(out.rows * out.vocab_size));

  ForEachBlock([&](RowBlock block) {
    Embed(block);
    Project(0, block);
  });
  const int32_t last = model_.config.layers - 1;
  for (int32_t layer = 0; layer < last; ++layer) {
    ForEachBlock([&](RowBlock block) {
      Finish(layer, block);
      Project(layer + 1, block);
    });
  }
  KeepWanted();
  ForEachBlock([&](RowBlock block) {
    Finish(last, block);
    WriteLogits(block, out);
  });
  return out;
}

void ForwardPass::ForEachBlock(const std::function<void(RowBlock)>& work) {
  const auto rows = static_cast<int64_t>(rows_.size());
  if (rows == 0) return;
  const int64_t size = BlockRows(rows, runner_.threads());
  runner_.Run((rows + size - 1) / size, [&](int64_t part) { work({part * size, std::min(rows, (part + 1) * size)}); });
}

void ForwardPass::Embed(RowBlock block) {
  const auto hidden = static_cast<size_t>(model_.config.hidden_size);
  for (int64_t r = block.begin; r < block.end; ++r) {
    const ForwardSequence& sequence = batch_[static_cast<size_t>(rows_[r].sequence)];
    const size_t token = sequence.tokens[static_cast<size_t>(rows_[r].position - sequence.first_position)];
    std::memcpy(Residual(r), model_.weights.embedding.data() + token * hidden, hidden * sizeof(float));
  }
}

void ForwardPass::Project(int32_t layer, RowBlock block) {
  const LlamaConfig& config = model_.config;
  const LlamaLayerWeights& weights = model_.weights.layers[static_cast<size_t>(layer)];
  const RowKernels& kernels = model_.kernels;
  const int64_t rows = block.size();
  Scratch normed(rows * config.hidden_size), key(rows * config.kv_width()), value(rows * config.kv_width());
  kernels.rms_norm(Residual(block.begin), weights.attention_norm.data(), config.rms_norm_eps, rows, config.hidden_size,
                   normed.data());
  kernels.multiply(weights.query, normed.data(), rows, Query(block.begin), false);
  kernels.multiply(weights.key, normed.data(), rows, key.data(), false);
  kernels.multiply(weights.value, normed.data(), rows, value.data(), false);

  const LayerPlace place = places_[static_cast<size_t>(layer)];
  std::vector<int64_t> positions, sink_positions, slots;
  for (int64_t r = block.begin; r < block.end; ++r) {
    const Row& row = rows_[static_cast<size_t>(r)];
    const ForwardSequence& sequence = batch_[static_cast<size_t>(row.sequence)];
    positions.push_back(row.position);
    sink_positions.push_back(sequence.policy.streams() ? SinkQueryPosition(sequence.policy, row.position) : 0);
    slots.push_back(
        sequence.groups[place.group].slot_mapping[static_cast<size_t>(row.position - sequence.first_position)]);
  }
  const std::span<float> query(Query(block.begin), static_cast<size_t>(rows * config.query_width()));
  if (streams_) {
    const std::span<float> sink_query(SinkQuery(block.begin), query.size());
    std::copy(query.begin(), query.end(), sink_query.begin());
    model_.rope.Apply(sink_query, sink_positions, config.heads, config.head_dim);
  }
  model_.rope.Apply(query, positions, config.heads, config.head_dim);
  model_.rope.Apply(key.span(), positions, config.kv_heads, config.head_dim);
  ReshapeAndCache(key.span(), value.span(), slots, place.layer, pools_[place.group]);
}

AttentionParams ForwardPass::ParamsOf(int32_t layer) const {
  const LlamaConfig& config = model_.config;
  AttentionParams params;
  params.q_heads = config.heads;
  params.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.head_dim)));
  params.window = config.groups[places_[static_cast<size_t>(layer)].group].window;
  params.sinks = model_.weights.layers[static_cast<size_t>(layer)].sinks;
  return params;
}

void ForwardPass::Attend(int32_t layer, RowBlock block, std::span<float> out) {
  const int64_t query_width = model_.config.query_width();
  const LayerPlace place = places_[static_cast<size_t>(layer)];
  for (int64_t begin = block.begin, end; begin < block.end; begin = end) {
    const StreamingPolicy policy = PolicyOf(begin);
    std::vector<AttentionSequence> pieces;
    // A call has one window.
    for (end = begin; end < block.end && PolicyOf(end) == policy; ++end) {
      const Row& row = rows_[static_cast<size_t>(end)];
      const bool continues = end > begin && row.sequence == rows_[static_cast<size_t>(end - 1)].sequence;
      if (continues && row.position == rows_[static_cast<size_t>(end - 1)].position + 1) {
        ++pieces.back().queries;
      } else {
        const ForwardSequence& sequence = batch_[static_cast<size_t>(row.sequence)];
        pieces.push_back({sequence.groups[place.group].block_table, row.position, 1});
      }
    }
    const AttentionParams params = ParamsOf(layer);
    const auto size = static_cast<size_t>((end - begin) * query_width);
    const std::span<float> part = out.subspan(static_cast<size_t>((begin - block.begin) * query_width), size);
    if (!policy.streams()) {
      PagedAttention({Query(begin), size}, pieces, place.layer, params, pools_[place.group], part);
      continue;
    }
    StreamingAttention({Query(begin), size}, {SinkQuery(begin), size}, pieces, place.layer, params, policy,
                       pools_[place.group], part);
  }
}

void ForwardPass::Finish(int32_t layer, RowBlock block) {
  const LlamaConfig& config = model_.config;
  const LlamaLayerWeights& weights = model_.weights.layers[static_cast<size_t>(layer)];
  const RowKernels& kernels = model_.kernels;
  const int64_t rows = block.size();
  float* residual = Residual(block.begin);
  Scratch mixed(rows * config.query_width());
  Attend(layer, block, mixed.span());
  kernels.multiply(weights.output, mixed.data(), rows, residual, true);

  const int64_t inner = config.intermediate_size;
  Scratch normed(rows * config.hidden_size), gate(rows * inner), up(rows * inner);
  kernels.rms_norm(residual, weights.mlp_norm.data(), config.rms_norm_eps, rows, config.hidden_size, normed.data());
  kernels.multiply(weights.gate, normed.data(), rows, gate.data(), false);
  kernels.multiply(weights.up, normed.data(), rows, up.data(), false);
  kernels.silu_multiply(gate.data(), up.data(), rows * inner);
  kernels.multiply(weights.down, gate.data(), rows, residual, true);
}

void ForwardPass::KeepWanted() {
  int64_t kept = 0;
  for (size_t r = 0; r < rows_.size(); ++r) {
    const LogitsWanted wanted = batch_[static_cast<size_t>(rows_[r].sequence)].logits;
    const bool last = r + 1 == rows_.size() || rows_[r + 1].sequence != rows_[r].sequence;
    if (wanted == LogitsWanted::kNone || (wanted == LogitsWanted::kLast && !last)) continue;
    const auto from = static_cast<int64_t>(r);
    if (kept < from) {
      std::copy_n(Residual(from), model_.config.hidden_size, Residual(kept));
      std::copy_n(Query(from), model_.config.query_width(), Query(kept));
      if (streams_) std::copy_n(SinkQuery(from), model_.config.query_width(), SinkQuery(kept));
      rows_[static_cast<size_t>(kept)] = rows_[r];
    }
    ++kept;
  }
  rows_.resize(static_cast<size_t>(kept));
}

void ForwardPass::WriteLogits(RowBlock block, Logits& out) {
  const LlamaConfig& config = model_.config;
  Scratch normed(block.size() * config.hidden_size);
  model_.kernels.rms_norm(Residual(block.begin), model_.weights.final_norm.data(), config.rms_norm_eps, block.size(),
                          config.hidden_size, normed.data());
  model_.kernels.multiply(model_.weights.logits, normed.data(), block.size(),
                          out.values.data() + block.begin * out.vocab_size, false);
}

}  // namespace kvmesh
