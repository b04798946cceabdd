// Body of the checksum of blocks: XXH3-64 by eight lanes, one for each of its accumulators.
#ifndef KVMESH_KERNELS_CUDA_CHECKSUM_BODY_H_
#define KVMESH_KERNELS_CUDA_CHECKSUM_BODY_H_

#include <algorithm>
#include <cstring>

#include "kernels/block_checksum.h"
#include "kernels/cuda/machine.h"
#include "kernels/xxh3.h"

namespace kvmesh::cuda {

inline constexpr int kHashLanes = 8;

// The eight little-endian bytes at p.
KVMESH_HOST_DEVICE inline uint64_t ReadWord(const std::byte* p) {
  if (reinterpret_cast<uintptr_t>(p) % 8 != 0) return xxh3_internal::Read64(p);
  uint64_t word;
  std::memcpy(&word, __builtin_assume_aligned(p, 8), 8);
  return word;
}

// Xxh3 of n bytes at p; each of eight neighbouring lanes calls it with the same bytes and gets the hash. `secret` is
// the default secret. All lanes of the warp take part; eights of them may have different bytes, with n as well.
template <class M>
KVMESH_KERNEL_BODY uint64_t HashByLanes(M& m, const std::byte* p, int64_t n, const uint64_t* secret) {
  namespace in = xxh3_internal;
  const int lane = m.Thread() % kHashLanes;
  const int64_t stripe = in::kStripeBytes, cycle = in::kBlockStripes;
  const bool many = n > 240;
  uint64_t acc = in::Accumulators().lane[lane];
  const int64_t stripes = many ? (n - 1) / stripe : 0;
  int64_t longest = stripes;  // of the warp, whose lanes shuffle in step
  for (int mask = kHashLanes; mask < kWarpThreads; mask *= 2) {
    longest = std::max(longest, m.ShuffleXor(longest, mask));
  }
  for (int64_t i = 0; i < longest; ++i) {
    const bool mine = i < stripes;
    const uint64_t value = mine ? ReadWord(p + i * stripe + 8 * lane) : 0;
    const uint64_t neighbour = m.ShuffleXor(value, 1);
    if (!mine) continue;
    const uint64_t keyed = value ^ secret[i % cycle + lane];
    acc += neighbour + (keyed & 0xffffffff) * (keyed >> 32);
    if (i % cycle == cycle - 1) {
      acc = (acc ^ acc >> 47 ^ secret[cycle + lane]) * in::Prime32(0);
    }
  }
  const uint64_t value = many ? ReadWord(p + n - stripe + 8 * lane) : 0;
  const uint64_t neighbour = m.ShuffleXor(value, 1);
  const uint64_t keyed = value ^ in::Secret(in::kSecretBytes - in::kStripeBytes - 7 + 8 * lane);
  acc += neighbour + (keyed & 0xffffffff) * (keyed >> 32);
  // Accumulators 2i and 2i + 1 fold into one; both lanes compute it, and even ones count.
  const uint64_t other = m.ShuffleXor(acc, 1);
  const int pair = lane / 2;
  uint64_t h =
      lane % 2 == 0 ? in::MultiplyFold(acc ^ in::Secret(11 + 16 * pair), other ^ in::Secret(19 + 16 * pair)) : 0;
  for (int mask = 1; mask < kHashLanes; mask *= 2) h += m.ShuffleXor(h, mask);
  if (many) return in::Avalanche(h + static_cast<uint64_t>(n) * in::Prime64(0));
  return Xxh3({p, static_cast<size_t>(n)});
}

struct ChecksumArgs {
  const std::byte* base = nullptr;  // of the slots
  int64_t slot_stride = 0;
  int64_t payload_bytes = 0;
  const uint32_t* blocks = nullptr;
  int64_t count = 0;
  const std::byte* headers = nullptr;  // [blocks, header_bytes]
  int64_t header_bytes = 0;
  std::byte* tops = nullptr;  // [blocks, top_stride]: sums of leaves, then the header
  int64_t top_stride = 0;     // a multiple of 8
  uint64_t* sums = nullptr;   // [blocks]

  constexpr int64_t leaves() const {
    return (payload_bytes + static_cast<int64_t>(kChecksumLeafBytes) - 1) / static_cast<int64_t>(kChecksumLeafBytes);
  }
};

// The default secret in shared memory.
template <class M>
KVMESH_KERNEL_BODY const uint64_t* SharedSecret(M& m) {
  uint64_t* const secret = reinterpret_cast<uint64_t*>(m.Shared());
  constexpr int kWords = xxh3_internal::kSecretBytes / 8;
  for (int i = m.Thread(); i < kWords; i += m.Threads()) secret[i] = xxh3_internal::SecretWord(i);
  m.Sync();
  return secret;
}

// First pass: the sum of each leaf, and the header, into `tops`. Eight lanes a leaf.
template <class M>
KVMESH_KERNEL_BODY void LeafBody(M& m, const ChecksumArgs& args) {
  const uint64_t* const secret = SharedSecret(m);
  const int64_t leaf_bytes = kChecksumLeafBytes, leaves = args.leaves(), all = args.count * leaves;
  const int64_t thread = m.Block(0) * m.Threads() + m.Thread(), threads = m.Blocks() * m.Threads();
  for (int64_t first = thread / kWarpThreads * (kWarpThreads / kHashLanes); first < all;
       first += threads / kHashLanes) {
    const int64_t leaf = first + thread % kWarpThreads / kHashLanes;
    const bool mine = leaf < all;
    const int64_t block = mine ? leaf / leaves : 0, begin = mine ? leaf % leaves * leaf_bytes : 0;
    const std::byte* const p = args.base + args.blocks[block] * args.slot_stride + begin;
    const uint64_t sum = HashByLanes(m, p, mine ? std::min(leaf_bytes, args.payload_bytes - begin) : 0, secret);
    if (!mine || thread % kHashLanes != 0) continue;
    std::byte* const to = args.tops + block * args.top_stride + begin / leaf_bytes * 8;
    for (int k = 0; k < 8; ++k) to[k] = static_cast<std::byte>(sum >> (8 * k) & 0xff);
  }
  for (int64_t i = thread; i < args.count * args.header_bytes; i += threads) {
    const int64_t block = i / args.header_bytes;
    args.tops[block * args.top_stride + leaves * 8 + i % args.header_bytes] = args.headers[i];
  }
}

// Second pass: the sum over each block's leaves and header. Eight lanes a block.
template <class M>
KVMESH_KERNEL_BODY void TopBody(M& m, const ChecksumArgs& args) {
  const uint64_t* const secret = SharedSecret(m);
  const int64_t thread = m.Block(0) * m.Threads() + m.Thread(), threads = m.Blocks() * m.Threads();
  const int64_t bytes = args.leaves() * 8 + args.header_bytes;
  for (int64_t first = thread / kWarpThreads * (kWarpThreads / kHashLanes); first < args.count;
       first += threads / kHashLanes) {
    const int64_t block = first + thread % kWarpThreads / kHashLanes;
    const bool mine = block < args.count;
    const uint64_t sum = HashByLanes(m, args.tops + (mine ? block : 0) * args.top_stride, mine ? bytes : 0, secret);
    if (mine && thread % kHashLanes == 0) args.sums[block] = sum;
  }
}

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_CHECKSUM_BODY_H_
