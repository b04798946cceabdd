// The functions of RowKernels over Eigen's widest float packet. Included once by each row_kernels_<set>.cc, which is
// compiled for its instruction set and renames Eigen's namespace: inline functions of Eigen compiled for one set must
// not be merged by the linker with those of another.
#ifndef KVMESH_WORKER_MODEL_ROW_KERNELS_IMPL_H_
#define KVMESH_WORKER_MODEL_ROW_KERNELS_IMPL_H_

#ifndef KVMESH_EIGEN_NAMESPACE
#error "define KVMESH_EIGEN_NAMESPACE first"
#endif
#define Eigen KVMESH_EIGEN_NAMESPACE
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
// Not <algorithm>, <vector> and the like: no inline function but Eigen's may be emitted from here.

#include "worker/model/row_kernels.h"

namespace kvmesh {
namespace {

namespace packet = Eigen::internal;
using Packet = packet::packet_traits<float>::type;
using IntPacket = packet::unpacket_traits<Packet>::integer_packet;
constexpr int kLanes = packet::unpacket_traits<Packet>::size;
constexpr int kPanelPackets = 2;
constexpr int kPanel = kPanelPackets * kLanes;

// Rows of the largest tile: its accumulators, one row of a panel and a broadcast fit into the vector registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 12;  // of 32
#elif defined(__AVX__)
constexpr int kTileRows = 6;  // of 16
#elif defined(__aarch64__)
constexpr int kTileRows = 8;  // of 32
#else
constexpr int kTileRows = 4;  // of 16, two of them for products
#endif

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
constexpr bool kFused = true;
#else
constexpr bool kFused = false;
#endif

// Panels that a tile of `rows` rows spans, so that few rows have enough independent chains too.
constexpr int TilePanels(int rows) {
  const int panels = kTileRows / rows;
  return panels < 1 ? 1 : (panels > 4 ? 4 : panels);
}

// Writes the first `count` lanes (all of them, or fewer at the last columns) of `value` to `out`.
inline void StoreLanes(float* out, Packet value, int64_t count, bool accumulate) {
  if (count >= kLanes) {
    packet::pstoreu(out, accumulate ? packet::padd(packet::ploadu<Packet>(out), value) : value);
    return;
  }
  float lanes[kLanes];
  packet::pstoreu(lanes, value);
  for (int64_t i = 0; i < count; ++i) out[i] = accumulate ? out[i] + lanes[i] : lanes[i];
}

// Rows x (Panels * kPanel) elements of the product. `columns`: how many of them exist.
template <int Rows, int Panels>
void MultiplyTile(const float* panels, int64_t depth, const float* x, float* out, int64_t out_stride, int64_t columns,
                  bool accumulate) {
  constexpr int kWidth = Panels * kPanelPackets;
  Packet acc[Rows][kWidth];
#pragma GCC unroll 64
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 64
    for (int c = 0; c < kWidth; ++c) acc[r][c] = packet::pset1<Packet>(0.0f);
  }
  for (int64_t k = 0; k < depth; ++k) {
    Packet weights[kWidth];
#pragma GCC unroll 64
    for (int c = 0; c < kWidth; ++c) {
      weights[c] =
          packet::ploadu<Packet>(panels + c / kPanelPackets * depth * kPanel + k * kPanel + c % kPanelPackets * kLanes);
    }
#pragma GCC unroll 64
    for (int r = 0; r < Rows; ++r) {
      const Packet value = packet::pset1<Packet>(x[r * depth + k]);
#pragma GCC unroll 64
      for (int c = 0; c < kWidth; ++c) acc[r][c] = packet::pmadd(value, weights[c], acc[r][c]);
    }
  }
#pragma GCC unroll 64
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 64
    for (int c = 0; c < kWidth; ++c) {
      const int64_t left = columns - c * kLanes;
      if (left > 0) StoreLanes(out + r * out_stride + c * kLanes, acc[r][c], left, accumulate);
    }
  }
}

// `Rows` rows of the product, over the panels from column `begin` to `end`.
template <int Rows>
void MultiplyRows(const PackedMatrix& weight, int64_t begin, int64_t end, const float* x, float* out, bool accumulate) {
  constexpr int kSpan = TilePanels(Rows);
  int64_t n = begin;
  for (; n + kSpan * kPanel <= end; n += kSpan * kPanel) {
    MultiplyTile<Rows, kSpan>(weight.panels.data() + n * weight.depth, weight.depth, x, out + n, weight.columns,
                              end - n, accumulate);
  }
  for (; n < end; n += kPanel) {
    MultiplyTile<Rows, 1>(weight.panels.data() + n * weight.depth, weight.depth, x, out + n, weight.columns, end - n,
                          accumulate);
  }
}

template <int Rows>
void MultiplyLastRows(int64_t rows, const PackedMatrix& weight, int64_t begin, int64_t end, const float* x, float* out,
                      bool accumulate) {
  if constexpr (Rows > 0) {
    if (rows == Rows) return MultiplyRows<Rows>(weight, begin, end, x, out, accumulate);
    MultiplyLastRows<Rows - 1>(rows, weight, begin, end, x, out, accumulate);
  }
}

// Goes over the columns in stretches that stay in the first-level cache while all rows pass.
void Multiply(const PackedMatrix& weight, const float* x, int64_t rows, float* out, bool accumulate) {
  constexpr int64_t kStretch = 4 * kPanel;
  for (int64_t begin = 0; begin < weight.columns; begin += kStretch) {
    const int64_t end = begin + kStretch < weight.columns ? begin + kStretch : weight.columns;
    int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows) {
      MultiplyRows<kTileRows>(weight, begin, end, x + r * weight.depth, out + r * weight.columns, accumulate);
    }
    MultiplyLastRows<kTileRows - 1>(rows - r, weight, begin, end, x + r * weight.depth, out + r * weight.columns,
                                    accumulate);
  }
}

// The packet at x, its lanes from `count` on zero.
inline Packet LoadLanes(const float* x, int64_t count) {
  if (count >= kLanes) return packet::ploadu<Packet>(x);
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = x[i];
  return packet::ploadu<Packet>(lanes);
}

// Sum of squares: 16 partial sums, element i in sum i % 16, then a fixed tree; the same for every packet size up to 16.
float SumOfSquares(const float* x, int64_t width) {
  constexpr int kSums = 16;
  static_assert(kSums % kLanes == 0);
  Packet acc[kSums / kLanes];
  for (Packet& sum : acc) sum = packet::pset1<Packet>(0.0f);
  for (int64_t i = 0; i < width; i += kSums) {
    for (int part = 0; part < kSums / kLanes; ++part) {
      const int64_t at = i + part * kLanes;
      if (at >= width) break;
      const Packet value = LoadLanes(x + at, width - at);
      acc[part] = packet::pmadd(value, value, acc[part]);
    }
  }
  float sums[kSums];
  for (int part = 0; part < kSums / kLanes; ++part) packet::pstoreu(sums + part * kLanes, acc[part]);
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

void RmsNorm(const float* x, const float* weight, float eps, int64_t rows, int64_t width, float* out) {
  for (int64_t r = 0; r < rows; ++r, x += width, out += width) {
    const float mean = SumOfSquares(x, width) / static_cast<float>(width);
    const Packet scale = packet::pset1<Packet>(1.0f / __builtin_sqrtf(mean + eps));
    for (int64_t i = 0; i < width; i += kLanes) {
      const Packet scaled = packet::pmul(LoadLanes(x + i, width - i), scale);
      StoreLanes(out + i, packet::pmul(scaled, LoadLanes(weight + i, width - i)), width - i, false);
    }
  }
}

// exp(x): 2^n * exp(r), r = x - n * ln 2 in [-ln 2 / 2, ln 2 / 2]. Polynomial and split of ln 2 from Cephes' expf;
// within 2 units in the last place. Below -87 it stays at exp(-87); above 88.3, where n is 128, it is infinite.
inline Packet Exp(Packet x) {
  const auto constant = [](float value) { return packet::pset1<Packet>(value); };
  x = packet::pmin(packet::pmax(x, constant(-87.0f)), constant(89.0f));
  const Packet n = packet::pfloor(packet::pmadd(x, constant(1.44269504088896341f), constant(0.5f)));
  Packet r = packet::pmadd(n, constant(-0.693359375f), x);
  r = packet::pmadd(n, constant(2.12194440e-4f), r);
  Packet y = constant(1.9875691500e-4f);
  y = packet::pmadd(y, r, constant(1.3981999507e-3f));
  y = packet::pmadd(y, r, constant(8.3334519073e-3f));
  y = packet::pmadd(y, r, constant(4.1665795894e-2f));
  y = packet::pmadd(y, r, constant(1.6666665459e-1f));
  y = packet::pmadd(y, r, constant(5.0000001201e-1f));
  y = packet::padd(packet::pmadd(y, packet::pmul(r, r), r), constant(1.0f));
  const IntPacket exponent = packet::padd(packet::pcast<Packet, IntPacket>(n), packet::pset1<IntPacket>(127));
  return packet::pmul(y, packet::preinterpret<Packet, IntPacket>(packet::plogical_shift_left<23>(exponent)));
}

void SiluMultiply(float* gate, const float* up, int64_t count) {
  const Packet one = packet::pset1<Packet>(1.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Packet g = LoadLanes(gate + i, count - i);
    const Packet silu = packet::pdiv(g, packet::padd(one, Exp(packet::pnegate(g))));
    StoreLanes(gate + i, packet::pmul(silu, LoadLanes(up + i, count - i)), count - i, false);
  }
}

constexpr RowKernels MakeRowKernels(const char* name) {
  return {.name = name,
          .panel = kPanel,
          .fused = kFused,
          .multiply = Multiply,
          .rms_norm = RmsNorm,
          .silu_multiply = SiluMultiply};
}

}  // namespace
}  // namespace kvmesh

#undef Eigen

#endif  // KVMESH_WORKER_MODEL_ROW_KERNELS_IMPL_H_
