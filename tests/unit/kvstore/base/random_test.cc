#include "kvstore/base/random.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace kvmesh {
namespace {

// Gives zeros first, then ones.
class ZerosFirst : public RandomSource {
 public:
  void Fill(void* out, size_t size) override { std::memset(out, calls_++ == 0 ? 0 : 1, size); }

 private:
  int calls_ = 0;
};

TEST(RandomTest, KernelFillsEveryByte) {
  // Each position is non-zero in one of 64 draws but with odds of 2^-512.
  std::vector<uint8_t> seen(1000, 0);
  for (int i = 0; i < 64; ++i) {
    std::vector<uint8_t> draw(seen.size(), 0);
    RandomSource::Real().Fill(draw.data(), draw.size());
    for (size_t k = 0; k < draw.size(); ++k) seen[k] |= draw[k];
  }
  for (size_t k = 0; k < seen.size(); ++k) EXPECT_NE(seen[k], 0) << k;
  RandomSource::Real().Fill(nullptr, 0);
}

TEST(RandomTest, IncarnationsDifferAndAreNeverZero) {
  EXPECT_NE(NewIncarnation(RandomSource::Real()), NewIncarnation(RandomSource::Real()));
  ZerosFirst random;
  EXPECT_FALSE(NewIncarnation(random).IsZero());
}

}  // namespace
}  // namespace kvmesh
