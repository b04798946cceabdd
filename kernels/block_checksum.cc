#include "kernels/block_checksum.h"

#include <algorithm>
#include <vector>

#ifdef KVMESH_HAVE_XXHASH
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

#include "kernels/xxh3.h"

namespace kvmesh {
namespace {

uint64_t Hash(std::span<const std::byte> bytes) {
#ifdef KVMESH_HAVE_XXHASH
  return XXH3_64bits(bytes.data(), bytes.size());
#else
  return Xxh3(bytes);
#endif
}

}  // namespace

uint64_t BlockChecksum(std::span<const std::byte> header, std::span<const std::byte> payload) {
  const size_t leaves = (payload.size() + kChecksumLeafBytes - 1) / kChecksumLeafBytes;
  std::vector<std::byte> top;
  top.reserve(leaves * sizeof(uint64_t) + header.size());
  for (size_t i = 0; i < leaves; ++i) {
    const size_t begin = i * kChecksumLeafBytes;
    const uint64_t sum = Hash(payload.subspan(begin, std::min(kChecksumLeafBytes, payload.size() - begin)));
    for (size_t k = 0; k < sizeof(sum); ++k) top.push_back(static_cast<std::byte>(sum >> (8 * k) & 0xff));
  }
  top.insert(top.end(), header.begin(), header.end());
  return Hash(top);
}

}  // namespace kvmesh
