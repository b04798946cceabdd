#include "kernels/cuda/checksum_body.h"

#include <gtest/gtest.h>

#include <vector>

#include "../byte_pool.h"
#include "simulated_machine.h"

namespace kvmesh::cuda {
namespace {

TEST(ChecksumBodyTest, EqualsTheCpusForEveryLength) {
  const int64_t headers[] = {0, 1, 40, 128, 300};
  uint64_t seed = 0;
  for (int64_t payload : {0, 1, 16, 17, 129, 240, 241, 1024, 1025, 4095, 4096, 4097, 8192, 20000, 140000}) {
    for (int64_t header : headers) {
      SCOPED_TRACE("payload=" + std::to_string(payload) + " header=" + std::to_string(header));
      std::mt19937_64 random(++seed);
      const int64_t stride = (payload + 7) / 8 * 8 + 8;
      const std::vector<std::byte> slots = RandomBytes(stride * 6, random), tops_of = RandomBytes(header * 5, random);
      const uint32_t blocks[] = {5, 0, 2, 3, 1};
      ChecksumArgs args = {.base = slots.data(),
                           .slot_stride = stride,
                           .payload_bytes = payload,
                           .blocks = blocks,
                           .count = 5,
                           .headers = tops_of.data(),
                           .header_bytes = header};
      args.top_stride = (args.leaves() * 8 + header + 7) / 8 * 8;
      std::vector<std::byte> tops(static_cast<size_t>(args.top_stride * 5));
      std::vector<uint64_t> sums(5);
      args.tops = tops.data();
      args.sums = sums.data();
      constexpr size_t kSecret = xxh3_internal::kSecretBytes;
      Simulate(2, 1, 64, kSecret, seed, [&](Simulated& m) { LeafBody(m, args); });
      Simulate(1, 1, 32, kSecret, seed, [&](Simulated& m) { TopBody(m, args); });
      for (size_t i = 0; i < 5; ++i) {
        const std::span all(slots);
        ASSERT_EQ(sums[i], BlockChecksum(std::span(tops_of).subspan(i * header, header),
                                         all.subspan(blocks[i] * stride, payload)))
            << i;
      }
    }
  }
}

}  // namespace
}  // namespace kvmesh::cuda
