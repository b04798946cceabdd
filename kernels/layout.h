// The one description of how a block's bytes are laid out. Kernels, tiers and transports all read it; nothing guesses a
// stride from a shape.
//
// A row is the vector of one token: head_dim elements of K or of V of one head, or, with MLA, latent_dim + rope
// elements that stand for both. Canonical block, dense, all layers of one group contiguous:
//
//   heads: [layer][K|V][kv_head]{ [token] row, [token] descales }      MLA: [layer]{ [token] row, [token] descales }
//
// Formats that need them keep descales beside their rows: a stored value times its descale is the value. One descale
// serves `scale_group` elements of a row, the last group may be short.
#ifndef KVMESH_KERNELS_LAYOUT_H_
#define KVMESH_KERNELS_LAYOUT_H_

#include <cstddef>
#include <cstdint>

namespace kvmesh {

// Element format of stored K and V. Values are on the wire and on disk: never reuse one.
//   kFp8E4m3  sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinity, 0x7f and 0xff are NaN; at most 448
//   kInt8     two's complement, -127 to 127
//   kInt4     two's complement, -7 to 7; element 2i in the low half of byte i, 2i + 1 in the high half
enum class KvFormat : uint32_t {
  kUnspecified = 0,
  kF32 = 1,
  kF16 = 2,
  kBf16 = 3,
  kFp8E4m3 = 4,
  kInt8 = 5,
  kInt4 = 6,
};

// Bits of one element; 0 for kUnspecified.
constexpr int32_t KvFormatBits(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return 32;
    case KvFormat::kF16:
    case KvFormat::kBf16:
      return 16;
    case KvFormat::kFp8E4m3:
    case KvFormat::kInt8:
      return 8;
    case KvFormat::kInt4:
      return 4;
    case KvFormat::kUnspecified:
      break;
  }
  return 0;
}

// Descales are fp32.
inline constexpr int64_t kDescaleBytes = 4;
// Elements of an int4 row, and of a quantized MLA row, that share a descale.
inline constexpr int32_t kInt4ScaleGroup = 32;
inline constexpr int32_t kMlaScaleGroup = 64;

// Elements that share a descale in a row of `row_elements`; 0: the format has none.
constexpr int32_t KvScaleGroup(KvFormat format, int32_t row_elements, bool mla) {
  switch (format) {
    case KvFormat::kInt4:
      return kInt4ScaleGroup;
    case KvFormat::kFp8E4m3:
    case KvFormat::kInt8:
      return mla ? kMlaScaleGroup : row_elements;
    case KvFormat::kF32:
    case KvFormat::kF16:
    case KvFormat::kBf16:
    case KvFormat::kUnspecified:
      break;
  }
  return 0;
}

// Bytes of a row's elements, without descales.
constexpr int64_t KvRowBytes(KvFormat format, int32_t elements) {
  return (int64_t{elements} * KvFormatBits(format) + 7) / 8;
}

// Limits of a usable layout (kvstore/block validates them at open).
inline constexpr int64_t kMaxBlockTokens = 4096;
inline constexpr int64_t kMaxBlockBytes = int64_t{64} << 20;

// Shape and strides of one block. Strides are in bytes. Plain data: passed by value to kernels on any device.
struct BlockLayout {
  KvFormat format = KvFormat::kUnspecified;
  int32_t layers = 0;
  int32_t kv_heads = 0;  // 1 with MLA
  int32_t block_tokens = 0;
  int32_t head_dim = 0;            // elements of a row
  int32_t latent_dim = 0;          // MLA: a row's first elements, which are its value as well; 0: K and V are apart
  int32_t scale_group = 0;         // elements per descale; 0: no descales
  int64_t token_stride = 0;        // between rows of one head
  int64_t head_stride = 0;         // between heads of K (or of V) of one layer
  int64_t kv_stride = 0;           // from K to V of one layer; 0 with MLA
  int64_t layer_stride = 0;        // between layers
  int64_t scale_offset = 0;        // from a head's first row to its descales
  int64_t scale_token_stride = 0;  // between the descales of one row and the next
  int64_t block_bytes = 0;         // all layers

  // Byte offset in a block of element 0 of (layer, K=0 or V=1, kv_head, token).
  constexpr int64_t Offset(int64_t layer, int64_t kv, int64_t kv_head, int64_t token) const {
    return layer * layer_stride + kv * kv_stride + kv_head * head_stride + token * token_stride;
  }
  // Byte offset in a block of the first descale of that row. REQUIRES: scale_group > 0.
  constexpr int64_t ScaleOffset(int64_t layer, int64_t kv, int64_t kv_head, int64_t token) const {
    return Offset(layer, kv, kv_head, 0) + scale_offset + token * scale_token_stride;
  }
  // Descales of a row.
  constexpr int32_t scale_groups() const { return scale_group == 0 ? 0 : (head_dim + scale_group - 1) / scale_group; }
  constexpr bool mla() const { return latent_dim > 0; }

  friend constexpr bool operator==(const BlockLayout&, const BlockLayout&) = default;
};

namespace layout_internal {

constexpr BlockLayout Dense(BlockLayout out) {
  out.scale_group = KvScaleGroup(out.format, out.head_dim, out.mla());
  out.token_stride = KvRowBytes(out.format, out.head_dim);
  out.scale_offset = out.scale_group == 0 ? 0 : out.token_stride * out.block_tokens;
  out.scale_token_stride = kDescaleBytes * out.scale_groups();
  out.head_stride = (out.token_stride + out.scale_token_stride) * out.block_tokens;
  out.kv_stride = out.mla() ? 0 : out.head_stride * out.kv_heads;
  out.layer_stride = out.head_stride * out.kv_heads * (out.mla() ? 1 : 2);
  out.block_bytes = out.layer_stride * out.layers;
  return out;
}

}  // namespace layout_internal

// The canonical dense layout of separate K and V: MHA, GQA, MQA. REQUIRES: all dimensions positive, format specified,
// head_dim even for kInt4.
constexpr BlockLayout CanonicalLayout(KvFormat format, int32_t layers, int32_t kv_heads, int32_t block_tokens,
                                      int32_t head_dim) {
  return layout_internal::Dense(
      {.format = format, .layers = layers, .kv_heads = kv_heads, .block_tokens = block_tokens, .head_dim = head_dim});
}

// The canonical dense layout of MLA: rows of the compressed latent and the decoupled RoPE key. REQUIRES: as above.
constexpr BlockLayout CanonicalMlaLayout(KvFormat format, int32_t layers, int32_t block_tokens, int32_t latent_dim,
                                         int32_t rope_dim) {
  return layout_internal::Dense({.format = format,
                                 .layers = layers,
                                 .kv_heads = 1,
                                 .block_tokens = block_tokens,
                                 .head_dim = latent_dim + rope_dim,
                                 .latent_dim = latent_dim});
}

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_LAYOUT_H_
