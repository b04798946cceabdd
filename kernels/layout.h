// The one description of how a block's bytes are laid out. Kernels, tiers and transports all read it; nothing guesses a
// stride from a shape.
//
// Canonical block: [layer][K|V][kv_head][token][head_dim], dense, all layers of one group contiguous.
#ifndef KVMESH_KERNELS_LAYOUT_H_
#define KVMESH_KERNELS_LAYOUT_H_

#include <cstddef>
#include <cstdint>

namespace kvmesh {

// Element format of stored K and V. Values are on the wire and on disk: never reuse one.
enum class KvFormat : uint32_t { kUnspecified = 0, kF32 = 1, kF16 = 2, kBf16 = 3 };

// Bytes of one element; 0 for kUnspecified.
constexpr int64_t KvFormatBytes(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return 4;
    case KvFormat::kF16:
    case KvFormat::kBf16:
      return 2;
    case KvFormat::kUnspecified:
      break;
  }
  return 0;
}

// Limits of a usable layout (kvstore/block validates them at open).
inline constexpr int64_t kMaxBlockTokens = 4096;
inline constexpr int64_t kMaxBlockBytes = int64_t{64} << 20;

// Shape and strides of one block. Strides are in bytes. Plain data: passed by value to kernels on any device.
struct BlockLayout {
  KvFormat format = KvFormat::kUnspecified;
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t block_tokens = 0;
  int32_t head_dim = 0;
  int64_t token_stride = 0;  // between tokens of one head
  int64_t head_stride = 0;   // between heads of K (or of V) of one layer
  int64_t kv_stride = 0;     // from K to V of one layer
  int64_t layer_stride = 0;  // between layers
  int64_t block_bytes = 0;   // all layers

  // Byte offset in a block of element 0 of (layer, K=0 or V=1, kv_head, token).
  constexpr int64_t Offset(int64_t layer, int64_t kv, int64_t kv_head, int64_t token) const {
    return layer * layer_stride + kv * kv_stride + kv_head * head_stride + token * token_stride;
  }
};

// The canonical dense layout. REQUIRES: all dimensions positive, format specified.
constexpr BlockLayout CanonicalLayout(KvFormat format, int32_t layers, int32_t kv_heads, int32_t block_tokens,
                                      int32_t head_dim) {
  BlockLayout out;
  out.format = format;
  out.layers = layers;
  out.kv_heads = kv_heads;
  out.block_tokens = block_tokens;
  out.head_dim = head_dim;
  out.token_stride = int64_t{head_dim} * KvFormatBytes(format);
  out.head_stride = out.token_stride * block_tokens;
  out.kv_stride = out.head_stride * kv_heads;
  out.layer_stride = out.kv_stride * 2;
  out.block_bytes = out.layer_stride * layers;
  return out;
}

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_LAYOUT_H_
