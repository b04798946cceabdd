#include "kernels/cuda/fragment.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "simulated_machine.h"

namespace kvmesh::cuda {
namespace {

// Small integers, which both types hold and sums keep.
template <class Element>
void Fill(std::byte* to, int count, std::mt19937_64& random, std::vector<float>& values) {
  for (int i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(random() % 9) - 4);
    const uint16_t bits = ToElement<Element>(values.back());
    std::memcpy(to + 2 * i, &bits, 2);
  }
}

// a [16][16] by keys [16][16] transposed and by values [16][16], through the fragment maps, against plain sums.
template <class Element>
void CheckProducts(uint64_t seed) {
  SCOPED_TRACE("seed=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  struct alignas(16) Tile {
    std::byte bytes[512];
  };
  Tile a, b;
  std::vector<float> x, y;
  Fill<Element>(a.bytes, 256, random, x);
  Fill<Element>(b.bytes, 256, random, y);
  const auto at = [](Tile& tile, FragmentRow r) { return tile.bytes + r.row * 32 + r.column * 2; };
  float by_key[16][16] = {}, by_value[16][16] = {};
  Simulate(1, 1, 32, 0, seed, [&](Simulated& m) {
    uint32_t query[4], keys[4], values[4];
    m.LoadMatrices<false>(query, [&](int lane) { return at(a, QueryFragmentRow(lane)); });
    m.LoadMatrices<false>(keys, [&](int lane) { return at(b, KeyFragmentRow(lane)); });
    m.LoadMatrices<true>(values, [&](int lane) { return at(b, ValueFragmentRow(lane)); });
    for (int half = 0; half < 2; ++half) {
      float k[4] = {}, v[4] = {};
      m.Mma<Element>(k, query, keys[2 * half], keys[2 * half + 1]);
      m.Mma<Element>(v, query, values[2 * half], values[2 * half + 1]);
      for (int i = 0; i < 4; ++i) {
        const FragmentRow r = SumElement(m.Thread(), i);
        by_key[r.row][half * 8 + r.column] = k[i];
        by_value[r.row][half * 8 + r.column] = v[i];
      }
    }
  });
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      float key = 0, value = 0;
      for (int k = 0; k < 16; ++k) {
        key += x[i * 16 + k] * y[j * 16 + k];
        value += x[i * 16 + k] * y[k * 16 + j];
      }
      ASSERT_EQ(by_key[i][j], key) << i << " " << j;
      ASSERT_EQ(by_value[i][j], value) << i << " " << j;
    }
  }
}

TEST(FragmentTest, ProductsEqualPlainSums) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    CheckProducts<Bf16>(seed);
    CheckProducts<F16>(seed);
  }
}

TEST(FragmentTest, PackedElementsAreRoundedToNearest) {
  EXPECT_EQ(PackElements<Bf16>(1.0f, -2.0f), 0xc0003f80u);
  EXPECT_EQ(PackElements<F16>(1.0f, -2.0f), 0xc0003c00u);
  EXPECT_EQ(PackElements<Bf16>(1.00390625f, 0.0f), 0x3f80u);  // a tie goes to even
}

}  // namespace
}  // namespace kvmesh::cuda
