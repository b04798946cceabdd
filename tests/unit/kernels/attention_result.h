// Results of attention in the tests, and what they are held against.
#ifndef KVMESH_TESTS_UNIT_KERNELS_ATTENTION_RESULT_H_
#define KVMESH_TESTS_UNIT_KERNELS_ATTENTION_RESULT_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace kvmesh {

// One sequence of a call.
struct Share {
  int64_t first_position;
  int64_t queries;
};

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

struct Result {
  Result() = default;
  // NaN all over: what is not written shows.
  Result(size_t elements, size_t rows)
      : out(elements, std::numeric_limits<float>::quiet_NaN()), lse(rows, std::numeric_limits<float>::quiet_NaN()) {}

  // What belongs to the queries [first, first + count) of `queries` in all.
  Result Slice(int64_t first, int64_t count, int64_t queries) const {
    const auto cut = [&](const std::vector<float>& from) {
      const int64_t row = static_cast<int64_t>(from.size()) / queries;
      return std::vector<float>(from.begin() + first * row, from.begin() + (first + count) * row);
    };
    Result part;
    part.out = cut(out);
    part.lse = cut(lse);
    return part;
  }
  void Append(const Result& other) {
    out.insert(out.end(), other.out.begin(), other.out.end());
    lse.insert(lse.end(), other.lse.begin(), other.lse.end());
  }

  std::vector<float> out;
  std::vector<float> lse;
};

inline bool SameBits(const Result& a, const Result& b) { return SameBits(a.out, b.out) && SameBits(a.lse, b.lse); }

// Absolute and relative.
inline void ExpectNear(const std::vector<float>& want, const std::vector<float>& got, float tolerance) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isinf(want[i])) {
      ASSERT_EQ(want[i], got[i]) << "element " << i;
    } else {
      ASSERT_NEAR(want[i], got[i], tolerance * (1 + std::abs(want[i]))) << "element " << i;
    }
  }
}

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_KERNELS_ATTENTION_RESULT_H_
