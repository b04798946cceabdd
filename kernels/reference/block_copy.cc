#include "kernels/block_copy.h"

#include <cstring>

#include "kernels/reference/reference.h"

namespace kvmesh::reference {
namespace {

// Calls visit(row in the pool, bytes) for the rows, then the descales, of each head of `range` of a block, in canonical
// order.
template <class Visit>
void ForEachRow(const KvPoolView& pool, uint32_t block, const ShardRange& range, Visit visit) {
  const BlockLayout& layout = pool.layout;
  std::byte* base = pool.base + block * pool.slot_stride;
  for (int64_t layer = range.first_layer; layer < range.first_layer + range.layers; ++layer) {
    for (int64_t kv = 0; kv < (layout.mla() ? 1 : 2); ++kv) {
      for (int64_t head = range.first_head; head < range.first_head + range.heads; ++head) {
        for (int64_t token = 0; token < layout.block_tokens; ++token) {
          visit(base + layout.Offset(layer, kv, head, token), KvRowBytes(layout.format, layout.head_dim));
        }
        for (int64_t token = 0; token < layout.block_tokens; ++token) {
          visit(base + layout.ScaleOffset(layer, kv, head, token), kDescaleBytes * layout.scale_groups());
        }
      }
    }
  }
}

}  // namespace

void CopyBlocks(const KvPoolView& from, const KvPoolView& to, std::span<const BlockPair> pairs) {
  for (const BlockPair& pair : pairs) {
    for (int64_t i = 0; i < from.layout.block_bytes; ++i) {
      to.base[pair.to * to.slot_stride + i] = from.base[pair.from * from.slot_stride + i];
    }
  }
}

void GatherBlocks(const KvPoolView& pool, std::span<const uint32_t> blocks, const ShardRange& range,
                  std::span<std::byte> out) {
  std::byte* to = out.data();
  for (uint32_t block : blocks) {
    ForEachRow(pool, block, range, [&](const std::byte* row, int64_t bytes) {
      std::memcpy(to, row, bytes);
      to += bytes;
    });
  }
}

void ScatterBlocks(std::span<const std::byte> in, const KvPoolView& pool, std::span<const uint32_t> blocks,
                   const ShardRange& range) {
  const std::byte* from = in.data();
  for (uint32_t block : blocks) {
    ForEachRow(pool, block, range, [&](std::byte* row, int64_t bytes) {
      std::memcpy(row, from, bytes);
      from += bytes;
    });
  }
}

}  // namespace kvmesh::reference
