// Rotary position embedding.
#ifndef KVMESH_KERNELS_ROPE_H_
#define KVMESH_KERNELS_ROPE_H_

#include <cstdint>
#include <span>
#include <vector>

namespace kvmesh {

struct RopeParams {
  double theta = 10000;      // pair i turns by position * theta^(-2i / rotary_dim)
  int32_t rotary_dim = 0;    // even; the first `rotary_dim` elements of a head turn, the rest stay
  bool interleaved = false;  // pairs are (2i, 2i + 1); else (i, i + rotary_dim / 2), as in Llama checkpoints of HF
};

// Cosines and sines of the angles, computed in double and rounded to fp32. Immutable once built: thread safe.
class RopeTable {
 public:
  // Holds positions 0 .. positions - 1; others are computed when met, to the same bits.
  // REQUIRES: rotary_dim even and positive, theta > 0.
  RopeTable(const RopeParams& params, int64_t positions);
  // With given frequencies (radians per position) of the rotary_dim / 2 pairs, for scaling rules; params.theta is
  // unused.
  RopeTable(const RopeParams& params, std::span<const double> frequencies, int64_t positions);

  // Rotates x, fp32 [tokens, heads, head_dim], in place; positions: [tokens]. A row's result depends on its position
  // and its elements only. REQUIRES: sizes agree, positions not negative, rotary_dim <= head_dim.
  void Apply(std::span<float> x, std::span<const int64_t> positions, int32_t heads, int32_t head_dim) const;

 private:
  // cos of each pair, then sin of each pair.
  void FillRow(int64_t position, float* row) const;

  RopeParams params_;
  std::vector<double> frequencies_;  // [rotary_dim / 2]
  int64_t positions_;
  std::vector<float> rows_;  // [positions][cos | sin][rotary_dim / 2]
};

// RopeTable(params, 0).Apply(...): no table is kept.
void ApplyRope(std::span<float> x, std::span<const int64_t> positions, int32_t heads, int32_t head_dim,
               const RopeParams& params);

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_ROPE_H_
