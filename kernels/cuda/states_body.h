// Bodies of merge_states and apply_rope.
#ifndef KVMESH_KERNELS_CUDA_STATES_BODY_H_
#define KVMESH_KERNELS_CUDA_STATES_BODY_H_

#include <cmath>
#include <limits>

#include "kernels/cuda/machine.h"
#include "kernels/host_device.h"
#include "kernels/rope.h"

namespace kvmesh::cuda {

// A query row that sees no key.
inline constexpr float kEmptyLse = -std::numeric_limits<float>::infinity();

// One of the states that are merged, in device memory; see AttentionState.
struct DeviceState {
  const float* out = nullptr;
  const float* lse = nullptr;
};

// Weights of the states of a row, and of a sink (-inf: none), in one pass over lse(0) .. lse(count - 1).
struct RowWeights {
  double highest = kEmptyLse;
  double sum = 0;

  KVMESH_HOST_DEVICE float Of(float lse) const {
    return lse == kEmptyLse ? 0.0f : static_cast<float>(std::exp(lse - highest) / sum);
  }
  KVMESH_HOST_DEVICE float lse() const { return sum == 0 ? kEmptyLse : static_cast<float>(highest + std::log(sum)); }
};

template <class Lse>
KVMESH_HOST_DEVICE RowWeights WeighStates(int64_t count, double sink, Lse lse) {
  RowWeights out{.highest = sink};
  for (int64_t i = 0; i < count; ++i) out.highest = std::fmax(out.highest, static_cast<double>(lse(i)));
  if (sink != kEmptyLse) out.sum = std::exp(sink - out.highest);
  for (int64_t i = 0; i < count; ++i) {
    if (lse(i) != kEmptyLse) out.sum += std::exp(static_cast<double>(lse(i)) - out.highest);
  }
  return out;
}

// One element of the merged row, in the order of the states. The zero keeps what is added to it, sign included. A sink
// alone, or nothing, gives 0.
template <class Lse, class Out>
KVMESH_HOST_DEVICE float MergeElement(const RowWeights& weights, int64_t count, Lse lse, Out out) {
  float acc = -0.0f;
  bool any = false;
  for (int64_t i = 0; i < count; ++i) {
    if (lse(i) == kEmptyLse) continue;
    any = true;
    acc = std::fmaf(weights.Of(lse(i)), out(i), acc);
  }
  return any ? acc : 0.0f;
}

struct MergeArgs {
  const DeviceState* states = nullptr;
  int64_t count = 0;  // states
  int64_t rows = 0;
  int32_t head_dim = 0;
  float* out = nullptr;
  float* lse = nullptr;  // may be null
};

// A block of threads a row at a time. The row's lse, which may be that of a state, is written after all have read it.
template <class M>
KVMESH_KERNEL_BODY void MergeBody(M& m, const MergeArgs& args) {
  for (int64_t row = m.Block(0); row < args.rows; row += m.Blocks()) {
    const auto lse = [&](int64_t i) { return args.states[i].lse[row]; };
    const RowWeights weights = WeighStates(args.count, kEmptyLse, lse);
    for (int32_t d = m.Thread(); d < args.head_dim; d += m.Threads()) {
      const int64_t at = row * args.head_dim + d;
      args.out[at] = MergeElement(weights, args.count, lse, [&](int64_t i) { return args.states[i].out[at]; });
    }
    m.Sync();
    if (m.Thread() == 0 && args.lse != nullptr) args.lse[row] = weights.lse();
  }
}

struct RopeArgs {
  float* x = nullptr;                   // [tokens, heads, head_dim]
  const int64_t* positions = nullptr;   // [tokens]
  const double* frequencies = nullptr;  // [rotary_dim / 2], or null: those of params.theta
  int64_t tokens = 0;
  int32_t heads = 0;
  int32_t head_dim = 0;
  RopeParams params;
};

// A thread turns one pair of one token for all heads.
template <class M>
KVMESH_KERNEL_BODY void RopeBody(M& m, const RopeArgs& args) {
  const int32_t pairs = args.params.rotary_dim / 2;
  const int32_t step = args.params.interleaved ? 2 : 1, apart = args.params.interleaved ? 1 : pairs;
  const int64_t all = args.tokens * pairs;
  for (int64_t i = m.Block(0) * m.Threads() + m.Thread(); i < all; i += m.Blocks() * m.Threads()) {
    const int64_t token = i / pairs;
    const int32_t pair = static_cast<int32_t>(i % pairs);
    const double frequency = args.frequencies != nullptr
                                 ? args.frequencies[pair]
                                 : std::pow(args.params.theta, -2.0 * pair / args.params.rotary_dim);
    const double angle = static_cast<double>(args.positions[token]) * frequency;
    const float cosine = static_cast<float>(std::cos(angle)), sine = static_cast<float>(std::sin(angle));
    float* head = args.x + token * args.heads * args.head_dim + int64_t{pair} * step;
    for (int32_t h = 0; h < args.heads; ++h, head += args.head_dim) {
      const float a = head[0], b = head[apart];
      head[0] = a * cosine - b * sine;
      head[apart] = b * cosine + a * sine;
    }
  }
}

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_STATES_BODY_H_
