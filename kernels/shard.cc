#include "kernels/shard.h"

#include <algorithm>

#include "kernels/check.h"

namespace kvmesh {
namespace {

// Adds a run, or lengthens the last one where both sides go on from its end.
void Add(int64_t from, int64_t to, int64_t bytes, std::vector<CopySegment>& out) {
  if (!out.empty() && out.back().from + out.back().bytes == from && out.back().to + out.back().bytes == to) {
    out.back().bytes += bytes;
  } else {
    out.push_back({from, to, bytes});
  }
}

// Whether the rows and descales of a head are one run of bytes, in that order.
bool HeadIsDense(const BlockLayout& layout) {
  const int64_t row = KvRowBytes(layout.format, layout.head_dim);
  return layout.token_stride == row &&
         (layout.scale_group == 0 || (layout.scale_offset == row * layout.block_tokens &&
                                      layout.scale_token_stride == kDescaleBytes * layout.scale_groups()));
}

// One head of K or of V: rows, then descales, token by token.
void AddHead(const BlockLayout& from, int64_t from_head, const BlockLayout& to, int64_t to_head,
             std::vector<CopySegment>& out) {
  const int64_t row = KvRowBytes(to.format, to.head_dim);
  const int64_t descales = kDescaleBytes * to.scale_groups();
  if (HeadIsDense(from) && HeadIsDense(to)) return Add(from_head, to_head, (row + descales) * to.block_tokens, out);
  for (int64_t t = 0; t < to.block_tokens; ++t) {
    Add(from_head + t * from.token_stride, to_head + t * to.token_stride, row, out);
  }
  for (int64_t t = 0; descales > 0 && t < to.block_tokens; ++t) {
    Add(from_head + from.scale_offset + t * from.scale_token_stride,
        to_head + to.scale_offset + t * to.scale_token_stride, descales, out);
  }
}

}  // namespace

std::vector<CopySegment> RangeSegments(const BlockLayout& from_layout, const ShardRange& from,
                                       const BlockLayout& to_layout, const ShardRange& to) {
  Require(from_layout.format == to_layout.format && from_layout.block_tokens == to_layout.block_tokens &&
              from_layout.head_dim == to_layout.head_dim && from_layout.latent_dim == to_layout.latent_dim &&
              from_layout.scale_group == to_layout.scale_group,
          "RangeSegments: the layouts differ in more than layers, heads and strides");
  Require(from_layout.layers == from.layers && from_layout.kv_heads == from.heads && to_layout.layers == to.layers &&
              to_layout.kv_heads == to.heads,
          "RangeSegments: a layout is not that of its range");
  const int64_t begin_layer = std::max(from.first_layer, to.first_layer);
  const int64_t end_layer = std::min(from.first_layer + from.layers, to.first_layer + to.layers);
  const int64_t begin_head = std::max(from.first_head, to.first_head);
  const int64_t end_head = std::min(from.first_head + from.heads, to.first_head + to.heads);
  std::vector<CopySegment> out;
  for (int64_t layer = begin_layer; layer < end_layer; ++layer) {
    for (int64_t kv = 0; kv < (to_layout.mla() ? 1 : 2); ++kv) {
      for (int64_t head = begin_head; head < end_head; ++head) {
        AddHead(from_layout, from_layout.Offset(layer - from.first_layer, kv, head - from.first_head, 0), to_layout,
                to_layout.Offset(layer - to.first_layer, kv, head - to.first_head, 0), out);
      }
    }
  }
  return out;
}

std::vector<CopySegment> ShardSegments(const BlockLayout& whole, const ShardRange& from, const ShardRange& to) {
  Require(ShardFits(whole, from) && ShardFits(whole, to), "ShardSegments: a shard is not part of the block");
  return RangeSegments(ShardLayout(whole, from), from, ShardLayout(whole, to), to);
}

}  // namespace kvmesh
