#include "kernels/quantize_kv.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/reference/reference.h"
#include "kernels/variant.h"

namespace kvmesh {
namespace {

// Tokens whose rows are in fp32 at a time: they stay in the first-level cache.
constexpr int64_t kTokensAtOnce = 16;

void Quantize(const float* x, const BlockLayout& layout, const StoredRows<std::byte>& rows) {
  switch (CurrentVariant()) {
    case KernelVariant::kReference:
      return reference::QuantizeRows(x, layout, rows);
    case KernelVariant::kHighway:
    case KernelVariant::kAvx512:
      return cpu::QuantizeRows(x, layout, rows);
  }
}

void Dequantize(const StoredRows<const std::byte>& rows, const BlockLayout& layout, float* out) {
  switch (CurrentVariant()) {
    case KernelVariant::kReference:
      return reference::DequantizeRows(rows, layout, out);
    case KernelVariant::kHighway:
    case KernelVariant::kAvx512:
      return cpu::DequantizeRows(rows, layout, out);
  }
}

void CopyRows(const StoredRows<const std::byte>& from, const BlockLayout& layout, const StoredRows<std::byte>& to) {
  const int64_t row_bytes = KvRowBytes(layout.format, layout.head_dim);
  const int64_t descale_bytes = layout.scale_groups() * kDescaleBytes;
  for (int64_t i = 0; i < from.count; ++i) {
    std::memcpy(to.Row(i), from.Row(i), row_bytes);
    if (descale_bytes > 0) std::memcpy(to.Descales(i), from.Descales(i), descale_bytes);
  }
}

}  // namespace

void QuantizeRow(std::span<const float> x, const BlockLayout& layout, std::byte* row, std::byte* descales) {
  Require(KvFormatBits(layout.format) > 0, "QuantizeRow: no format");
  Require(x.size() == static_cast<size_t>(layout.head_dim), "QuantizeRow: x is not [head_dim]");
  Quantize(x.data(), layout, {.row = row, .descales = descales, .count = 1});
}

void DequantizeRow(const std::byte* row, const std::byte* descales, const BlockLayout& layout, std::span<float> out) {
  Require(KvFormatBits(layout.format) > 0, "DequantizeRow: no format");
  Require(out.size() == static_cast<size_t>(layout.head_dim), "DequantizeRow: out is not [head_dim]");
  Dequantize({.row = row, .descales = descales, .count = 1}, layout, out.data());
}

void ConvertBlock(const BlockLayout& from, std::span<const std::byte> in, const BlockLayout& to,
                  std::span<std::byte> out) {
  Require(KvFormatBits(from.format) > 0 && KvFormatBits(to.format) > 0, "ConvertBlock: no format");
  Require(from.layers == to.layers && from.kv_heads == to.kv_heads && from.block_tokens == to.block_tokens &&
              from.head_dim == to.head_dim && from.latent_dim == to.latent_dim,
          "ConvertBlock: layouts of different shapes");
  Require(from.format != to.format || from.scale_group == to.scale_group, "ConvertBlock: different scale groups");
  Require(in.size() == static_cast<size_t>(from.block_bytes) && out.size() == static_cast<size_t>(to.block_bytes),
          "ConvertBlock: not block_bytes bytes");
  const int64_t at_once = std::min<int64_t>(kTokensAtOnce, from.block_tokens);
  std::vector<float> values(from.format == to.format ? 0 : static_cast<size_t>(at_once) * from.head_dim);
  for (int64_t layer = 0; layer < from.layers; ++layer) {
    for (int64_t kv = 0; kv < (from.mla() ? 1 : 2); ++kv) {
      for (int64_t head = 0; head < from.kv_heads; ++head) {
        for (int64_t token = 0; token < from.block_tokens; token += at_once) {
          const int64_t count = std::min(at_once, from.block_tokens - token);
          const auto source = RowsOfTokens(from, in.data(), layer, kv, head, token, count);
          const auto target = RowsOfTokens(to, out.data(), layer, kv, head, token, count);
          if (from.format == to.format) {
            CopyRows(source, from, target);
          } else {
            Dequantize(source, from, values.data());
            Quantize(values.data(), to, target);
          }
        }
      }
    }
  }
}

}  // namespace kvmesh
