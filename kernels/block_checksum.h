// The checksum that travels with every copy of a block.
#ifndef KVMESH_KERNELS_BLOCK_CHECKSUM_H_
#define KVMESH_KERNELS_BLOCK_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvmesh {

// Bytes of one leaf of the checksum tree.
inline constexpr size_t kChecksumLeafBytes = 4096;

// XXH3-64 (seed 0, default secret) over: the little-endian XXH3-64 of each 4 KiB leaf of `payload` in order (the last
// leaf may be short; an empty payload has none), followed by `header`.
uint64_t BlockChecksum(std::span<const std::byte> header, std::span<const std::byte> payload);

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_BLOCK_CHECKSUM_H_
