// Random inputs of the checks.
#ifndef KVMESH_KERNELS_CUDA_CHECK_DRAWN_H_
#define KVMESH_KERNELS_CUDA_CHECK_DRAWN_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/kv_pool_view.h"

namespace kvmesh::cuda {

inline std::vector<float> DrawFloats(int64_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(count));
  for (float& x : out) x = normal(random);
  return out;
}

inline std::vector<std::byte> DrawBytes(int64_t count, std::mt19937_64& random) {
  std::vector<std::byte> out(static_cast<size_t>(count));
  for (std::byte& b : out) b = static_cast<std::byte>(random() & 0xff);
  return out;
}

// `count` ids below `slots`, none twice.
inline std::vector<uint32_t> DrawBlocks(int64_t slots, int64_t count, std::mt19937_64& random) {
  std::vector<uint32_t> out(static_cast<size_t>(slots));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint32_t>(i);
  std::shuffle(out.begin(), out.end(), random);
  out.resize(static_cast<size_t>(count));
  return out;
}

// A pool on the host whose bytes are 0xff, a NaN in each format.
struct DrawnPool {
  DrawnPool(const BlockLayout& layout, int64_t slots)
      : bytes(static_cast<size_t>(layout.block_bytes * slots), std::byte{0xff}),
        view{bytes.data(), layout.block_bytes, slots, layout} {}
  DrawnPool(const DrawnPool&) = delete;

  std::vector<std::byte> bytes;
  KvPoolView view;
};

// The first difference beyond tolerance * (1 + |want|), in words; empty: there is none.
inline std::string Difference(const std::vector<float>& want, const std::vector<float>& got, float tolerance,
                              const char* what) {
  for (size_t i = 0; i < want.size(); ++i) {
    const bool equal = want[i] == got[i] || (std::isnan(want[i]) && std::isnan(got[i]));
    if (equal || std::abs(want[i] - got[i]) <= tolerance * (1 + std::abs(want[i]))) continue;
    return std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(got[i]) + ", must be " +
           std::to_string(want[i]);
  }
  return "";
}

template <class T>
std::string DifferentBytes(const std::vector<T>& want, const std::vector<T>& got, const char* what) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::memcmp(&want[i], &got[i], sizeof(T)) != 0) return std::string(what) + " differ from " + std::to_string(i);
  }
  return "";
}

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_CHECK_DRAWN_H_
