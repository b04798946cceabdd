// Numbers for blocks that are converted between formats: derived from the key, from -2 to 2, with bits that no smaller
// format keeps.
#ifndef KVMESH_TESTS_UNIT_KVSTORE_TIERS_FORMAT_CONTENT_H_
#define KVMESH_TESTS_UNIT_KVSTORE_TIERS_FORMAT_CONTENT_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/kv_format.h"
#include "kernels/quantize_kv.h"
#include "kvstore/block/lossy_formats.h"
#include "kvstore/tiers/tier_layouts.h"
#include "tests/support/block_content.h"

namespace kvmesh {

// The block in `layout`, every number off by `error`.
inline std::vector<std::byte> FormatContent(const BlockKey& key, const BlockLayout& layout, float error = 0) {
  const BlockLayout f32 = *LayoutInFormat(layout, KvFormat::kF32);
  std::vector<float> values(static_cast<size_t>(f32.block_bytes) / sizeof(float));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto random = static_cast<double>(TestContentWord(key, i) >> 11) / static_cast<double>(uint64_t{1} << 53);
    values[i] = static_cast<float>(4 * random - 2) + error;
  }
  std::vector<std::byte> out(static_cast<size_t>(layout.block_bytes));
  ConvertBlock(f32, std::as_bytes(std::span(values)), layout, out);
  return out;
}

// How far a number may be off that went through these formats, twice each.
inline float FormatError(LossyFormats lossy_formats) {
  float error = 0;
  for (const KvFormat format : kKvFormats) {
    LossyFormats one;
    one.Add(format);
    if (!one.SubsetOf(lossy_formats)) continue;
    switch (format) {
      case KvFormat::kInt4:
        error += 2.0f / 7;
        break;
      case KvFormat::kFp8E4m3:
        error += 2.0f / 8;
        break;
      case KvFormat::kInt8:
        error += 2.0f / 127;
        break;
      default:
        error += 2.0f / 256;
        break;
    }
  }
  return error;
}

// Bit for bit when `tolerance` is 0.
inline testing::AssertionResult HoldsFormatContent(const BlockKey& key, const BlockLayout& layout,
                                                   std::span<const std::byte> bytes, float tolerance) {
  const std::vector<std::byte> right = FormatContent(key, layout);
  if (bytes.size() != right.size()) return testing::AssertionFailure() << bytes.size() << " bytes";
  if (tolerance == 0) {
    if (std::memcmp(bytes.data(), right.data(), right.size()) == 0) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "block " << key.ToHex() << " is not exact";
  }
  const BlockLayout f32 = *LayoutInFormat(layout, KvFormat::kF32);
  std::vector<float> is(static_cast<size_t>(f32.block_bytes) / sizeof(float)), expected(is.size());
  ConvertBlock(layout, bytes, f32, std::as_writable_bytes(std::span(is)));
  ConvertBlock(layout, right, f32, std::as_writable_bytes(std::span(expected)));
  for (size_t i = 0; i < is.size(); ++i) {
    if (std::abs(is[i] - expected[i]) <= tolerance) continue;
    return testing::AssertionFailure() << "block " << key.ToHex() << ": element " << i << " is " << is[i] << ", not "
                                       << expected[i] << " within " << tolerance;
  }
  return testing::AssertionSuccess();
}

}  // namespace kvmesh

#endif  // KVMESH_TESTS_UNIT_KVSTORE_TIERS_FORMAT_CONTENT_H_
