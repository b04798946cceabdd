#include "kernels/rope.h"

#include <cmath>

#include "kernels/check.h"

namespace kvmesh {
namespace {

std::vector<double> Frequencies(const RopeParams& params) {
  Require(params.theta > 0, "RopeTable: theta is not positive");
  std::vector<double> out;
  for (int32_t i = 0; i < params.rotary_dim / 2; ++i) {
    out.push_back(std::pow(params.theta, -2.0 * i / params.rotary_dim));
  }
  return out;
}

// Turns `pairs` pairs; element a of pair i is head[i * step], element b is head[i * step + apart].
void Turn(float* head, const float* cosines, const float* sines, int32_t pairs, int32_t step, int32_t apart) {
  for (int32_t i = 0; i < pairs; ++i) {
    const float a = head[i * step];
    const float b = head[i * step + apart];
    head[i * step] = a * cosines[i] - b * sines[i];
    head[i * step + apart] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace

RopeTable::RopeTable(const RopeParams& params, int64_t positions) : RopeTable(params, Frequencies(params), positions) {}

RopeTable::RopeTable(const RopeParams& params, std::span<const double> frequencies, int64_t positions)
    : params_(params), frequencies_(frequencies.begin(), frequencies.end()), positions_(positions) {
  Require(params.rotary_dim > 0 && params.rotary_dim % 2 == 0, "RopeTable: rotary_dim is not even and positive");
  Require(frequencies.size() == static_cast<size_t>(params.rotary_dim) / 2, "RopeTable: one frequency per pair");
  Require(positions >= 0, "RopeTable: negative number of positions");
  rows_.resize(static_cast<size_t>(positions) * params.rotary_dim);
  for (int64_t p = 0; p < positions; ++p) FillRow(p, &rows_[static_cast<size_t>(p) * params.rotary_dim]);
}

void RopeTable::FillRow(int64_t position, float* row) const {
  const size_t pairs = frequencies_.size();
  for (size_t i = 0; i < pairs; ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    row[i] = static_cast<float>(std::cos(angle));
    row[pairs + i] = static_cast<float>(std::sin(angle));
  }
}

void RopeTable::Apply(std::span<float> x, std::span<const int64_t> positions, int32_t heads, int32_t head_dim) const {
  Require(heads > 0 && head_dim >= params_.rotary_dim, "ApplyRope: rotary_dim exceeds head_dim");
  Require(x.size() == positions.size() * static_cast<size_t>(heads) * head_dim,
          "ApplyRope: x is not [tokens, heads, head_dim]");
  const int32_t pairs = params_.rotary_dim / 2;
  std::vector<float> computed(params_.rotary_dim);
  float* head = x.data();
  for (int64_t position : positions) {
    Require(position >= 0, "ApplyRope: negative position");
    const float* row = computed.data();
    if (position < positions_) {
      row = &rows_[static_cast<size_t>(position) * params_.rotary_dim];
    } else {
      FillRow(position, computed.data());
    }
    for (int32_t h = 0; h < heads; ++h, head += head_dim) {
      if (params_.interleaved) {
        Turn(head, row, row + pairs, pairs, 2, 1);
      } else {
        Turn(head, row, row + pairs, pairs, 1, pairs);
      }
    }
  }
}

void ApplyRope(std::span<float> x, std::span<const int64_t> positions, int32_t heads, int32_t head_dim,
               const RopeParams& params) {
  RopeTable(params, 0).Apply(x, positions, heads, head_dim);
}

}  // namespace kvmesh
