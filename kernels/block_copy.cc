#include "kernels/block_copy.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/check.h"
#include "kernels/reference/reference.h"
#include "kernels/variant.h"

namespace kvmesh {
namespace {

// `ids` in ascending order. REQUIRES: no id twice.
std::vector<uint32_t> SortedOnce(std::vector<uint32_t> ids, const char* what) {
  std::sort(ids.begin(), ids.end());
  Require(std::adjacent_find(ids.begin(), ids.end()) == ids.end(), what);
  return ids;
}

void CheckPairs(const KvPoolView& from, const KvPoolView& to, std::span<const BlockPair> pairs) {
  Require(from.layout == to.layout, "CopyBlocks: the pools have different layouts");
  std::vector<uint32_t> targets;
  for (const BlockPair& pair : pairs) {
    Require(pair.from < from.slots && pair.to < to.slots, "CopyBlocks: block id outside the pool");
    targets.push_back(pair.to);
  }
  targets = SortedOnce(std::move(targets), "CopyBlocks: a block is written twice");
  if (from.base != to.base) return;
  for (const BlockPair& pair : pairs) {
    Require(!std::binary_search(targets.begin(), targets.end(), pair.from),
            "CopyBlocks: a block is both read and written");
  }
}

void CheckRange(const KvPoolView& pool, std::span<const uint32_t> blocks, const ShardRange& range, size_t bytes) {
  Require(ShardFits(pool.layout, range), "GatherBlocks, ScatterBlocks: range outside the layout");
  for (uint32_t id : blocks) Require(id < pool.slots, "GatherBlocks, ScatterBlocks: block id outside the pool");
  Require(bytes == blocks.size() * static_cast<size_t>(ShardLayout(pool.layout, range).block_bytes),
          "GatherBlocks, ScatterBlocks: the buffer is not [blocks, bytes of a shard]");
}

// The runs from a slot of the pool to a block of the dense buffer.
std::vector<CopySegment> DenseSegments(const KvPoolView& pool, const ShardRange& range) {
  return RangeSegments(pool.layout, WholeShard(pool.layout), ShardLayout(pool.layout, range), range);
}

}  // namespace

void CopyBlocks(const KvPoolView& from, const KvPoolView& to, std::span<const BlockPair> pairs) {
  CheckPairs(from, to, pairs);
  if (CurrentVariant() == KernelVariant::kReference) return reference::CopyBlocks(from, to, pairs);
  for (const BlockPair& pair : pairs) {
    std::memcpy(to.At(pair.to, 0, 0, 0, 0), from.At(pair.from, 0, 0, 0, 0), from.layout.block_bytes);
  }
}

void GatherBlocks(const KvPoolView& pool, std::span<const uint32_t> blocks, const ShardRange& range,
                  std::span<std::byte> out) {
  CheckRange(pool, blocks, range, out.size());
  if (CurrentVariant() == KernelVariant::kReference) return reference::GatherBlocks(pool, blocks, range, out);
  const std::vector<CopySegment> segments = DenseSegments(pool, range);
  const int64_t block_bytes = ShardLayout(pool.layout, range).block_bytes;
  std::byte* to = out.data();
  for (uint32_t id : blocks) {
    const std::byte* from = pool.At(id, 0, 0, 0, 0);
    for (const CopySegment& s : segments) std::memcpy(to + s.to, from + s.from, s.bytes);
    to += block_bytes;
  }
}

void ScatterBlocks(std::span<const std::byte> in, const KvPoolView& pool, std::span<const uint32_t> blocks,
                   const ShardRange& range) {
  CheckRange(pool, blocks, range, in.size());
  SortedOnce({blocks.begin(), blocks.end()}, "ScatterBlocks: a block is listed twice");
  if (CurrentVariant() == KernelVariant::kReference) return reference::ScatterBlocks(in, pool, blocks, range);
  const std::vector<CopySegment> segments = DenseSegments(pool, range);
  const int64_t block_bytes = ShardLayout(pool.layout, range).block_bytes;
  const std::byte* from = in.data();
  for (uint32_t id : blocks) {
    std::byte* to = pool.At(id, 0, 0, 0, 0);
    for (const CopySegment& s : segments) std::memcpy(to + s.from, from + s.to, s.bytes);
    from += block_bytes;
  }
}

}  // namespace kvmesh
