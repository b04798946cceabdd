#include "kernels/cuda/block_bytes.h"
#include "kernels/cuda/block_bytes_body.h"
#include "kernels/cuda/checksum_body.h"
#include "kernels/cuda/launch.h"

namespace kvmesh::cuda {
namespace {

template <class Unit>
__global__ void __launch_bounds__(kThreads) CopyKernel(CopyArgs args) {
  Device m;
  CopyBody<Unit>(m, args);
}

template <bool kGather, class Unit>
__global__ void __launch_bounds__(kThreads) GatherKernel(GatherArgs args) {
  Device m;
  GatherBody<kGather, Unit>(m, args);
}

__global__ void __launch_bounds__(kThreads) LeafKernel(ChecksumArgs args) {
  Device m;
  LeafBody(m, args);
}

__global__ void __launch_bounds__(kThreads) TopKernel(ChecksumArgs args) {
  Device m;
  TopBody(m, args);
}

int64_t Address(const void* p) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(p)); }

template <bool kGather>
cudaError_t Move(const KvPoolView& pool, DeviceView<const uint32_t> blocks, const ShardRange& range, std::byte* dense,
                 int64_t bytes, cudaStream_t stream) {
  const BlockLayout& layout = pool.layout;
  if (KvFormatBits(layout.format) == 0 || !ShardFits(layout, range)) return cudaErrorInvalidValue;
  const int64_t block_bytes = ShardLayout(layout, range).block_bytes;
  if (bytes != blocks.size * block_bytes) return cudaErrorInvalidValue;
  if (blocks.empty()) return cudaSuccess;
  const GatherArgs args = {pool, PiecesOf(layout), range, blocks.data, blocks.size, block_bytes, dense};
  const HeadPieces& p = args.pieces;
  const int64_t unit = UnitOf(Address(pool.base), Address(dense), pool.slot_stride, layout.layer_stride,
                              layout.kv_stride, layout.head_stride, layout.scale_offset * (p.pieces > 1 ? 1 : 0),
                              p.bytes, p.stride, p.descale_bytes, p.descale_stride);
  const unsigned grid = BlocksFor(bytes / unit);
  switch (unit) {
    case 16:
      GatherKernel<kGather, Unit16><<<grid, kThreads, 0, stream>>>(args);
      break;
    case 8:
    case 4:
      GatherKernel<kGather, uint32_t><<<BlocksFor(bytes / 4), kThreads, 0, stream>>>(args);
      break;
    default:
      GatherKernel<kGather, uint8_t><<<BlocksFor(bytes), kThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

int64_t TopStride(int64_t payload_bytes, int64_t header_bytes) {
  return (ChecksumArgs{.payload_bytes = payload_bytes}.leaves() * 8 + header_bytes + 7) / 8 * 8;
}

}  // namespace

cudaError_t CopyBlocks(const KvPoolView& from, const KvPoolView& to, DeviceView<const BlockPair> pairs,
                       cudaStream_t stream) {
  if (!(from.layout == to.layout)) return cudaErrorInvalidValue;
  if (pairs.empty()) return cudaSuccess;
  const CopyArgs args = {from, to, pairs.data, pairs.size};
  const int64_t bytes = pairs.size * from.layout.block_bytes;
  const int64_t unit =
      UnitOf(Address(from.base), Address(to.base), from.slot_stride, to.slot_stride, from.layout.block_bytes);
  if (unit == 16) {
    CopyKernel<Unit16><<<BlocksFor(bytes / 16), kThreads, 0, stream>>>(args);
  } else if (unit >= 4) {
    CopyKernel<uint32_t><<<BlocksFor(bytes / 4), kThreads, 0, stream>>>(args);
  } else {
    CopyKernel<uint8_t><<<BlocksFor(bytes), kThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

cudaError_t GatherBlocks(const KvPoolView& pool, DeviceView<const uint32_t> blocks, const ShardRange& range,
                         DeviceView<std::byte> out, cudaStream_t stream) {
  return Move<true>(pool, blocks, range, out.data, out.size, stream);
}

cudaError_t ScatterBlocks(DeviceView<const std::byte> in, const KvPoolView& pool, DeviceView<const uint32_t> blocks,
                          const ShardRange& range, cudaStream_t stream) {
  // Only read: one kernel moves both ways.
  return Move<false>(pool, blocks, range, const_cast<std::byte*>(in.data), in.size, stream);
}

int64_t BlockChecksumsWorkspace(int64_t blocks, int64_t payload_bytes, int64_t header_bytes) {
  return blocks * TopStride(payload_bytes, header_bytes);
}

cudaError_t BlockChecksums(const KvPoolView& pool, DeviceView<const uint32_t> blocks, int64_t payload_bytes,
                           DeviceView<const std::byte> headers, DeviceView<std::byte> workspace,
                           DeviceView<uint64_t> sums, cudaStream_t stream) {
  if (blocks.empty()) return cudaSuccess;
  const int64_t header_bytes = headers.size / blocks.size;
  if (payload_bytes < 0 || payload_bytes > pool.slot_stride || headers.size % blocks.size != 0 ||
      sums.size != blocks.size || Address(workspace.data) % 8 != 0 ||
      workspace.size < BlockChecksumsWorkspace(blocks.size, payload_bytes, header_bytes)) {
    return cudaErrorInvalidValue;
  }
  const ChecksumArgs args = {.base = pool.base,
                             .slot_stride = pool.slot_stride,
                             .payload_bytes = payload_bytes,
                             .blocks = blocks.data,
                             .count = blocks.size,
                             .headers = headers.data,
                             .header_bytes = header_bytes,
                             .tops = workspace.data,
                             .top_stride = TopStride(payload_bytes, header_bytes),
                             .sums = sums.data};
  constexpr int64_t kSecretBytes = xxh3_internal::kSecretBytes;
  const int64_t threads = std::max(args.leaves() * kHashLanes, header_bytes) * blocks.size;
  LeafKernel<<<BlocksFor(threads), kThreads, kSecretBytes, stream>>>(args);
  TopKernel<<<BlocksFor(blocks.size * kHashLanes), kThreads, kSecretBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace kvmesh::cuda
