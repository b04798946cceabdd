// Several stored rows at even distances: those of the heads of one token, or of the tokens of one head.
#ifndef KVMESH_KERNELS_STORED_ROWS_H_
#define KVMESH_KERNELS_STORED_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/layout.h"

namespace kvmesh {

// Byte: std::byte, or const std::byte. Strides are in bytes. Descales stand where the format has them.
template <class Byte>
struct StoredRows {
  Byte* row = nullptr;       // element 0 of row 0
  Byte* descales = nullptr;  // its first descale
  int64_t count = 0;
  int64_t stride = 0;
  int64_t descale_stride = 0;

  Byte* Row(int64_t i) const { return row + i * stride; }
  Byte* Descales(int64_t i) const { return descales + i * descale_stride; }
};

// Rows of tokens [token, token + count) of one head in the block at `block`.
template <class Byte>
StoredRows<Byte> RowsOfTokens(const BlockLayout& layout, Byte* block, int64_t layer, int64_t kv, int64_t head,
                              int64_t token, int64_t count) {
  return {.row = block + layout.Offset(layer, kv, head, token),
          .descales = block + layout.ScaleOffset(layer, kv, head, token),
          .count = count,
          .stride = layout.token_stride,
          .descale_stride = layout.scale_token_stride};
}

// Rows of one token of all heads in the block at `block`.
template <class Byte>
StoredRows<Byte> RowsOfHeads(const BlockLayout& layout, Byte* block, int64_t layer, int64_t kv, int64_t token) {
  return {.row = block + layout.Offset(layer, kv, 0, token),
          .descales = block + layout.ScaleOffset(layer, kv, 0, token),
          .count = layout.kv_heads,
          .stride = layout.head_stride,
          .descale_stride = layout.head_stride};
}

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_STORED_ROWS_H_
