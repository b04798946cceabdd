#include "kvstore/tiers/tier_layouts.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/quantize_kv.h"

namespace kvmesh {
namespace {

using SteadyClock = std::chrono::steady_clock;

}  // namespace

absl::StatusOr<BlockLayout> LayoutInFormat(const BlockLayout& layout, KvFormat format) {
  if (KvFormatBits(format) == 0) return absl::InvalidArgumentError("format: none");
  if (format == layout.format) return layout;
  if (format == KvFormat::kInt4 && layout.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("int4: rows of ", layout.head_dim, " elements, must be even"));
  }
  const BlockLayout out =
      layout.mla() ? CanonicalMlaLayout(format, layout.layers, layout.block_tokens, layout.latent_dim,
                                        layout.head_dim - layout.latent_dim)
                   : CanonicalLayout(format, layout.layers, layout.kv_heads, layout.block_tokens, layout.head_dim);
  if (out.block_bytes > kMaxBlockBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("blocks of ", out.block_bytes, " bytes, the limit is ", kMaxBlockBytes));
  }
  return out;
}

TierLayouts::TierLayouts(const std::array<BlockLayout, 3>& layouts)
    : layouts_(layouts),
      fingerprints_{ComputeLayoutFingerprint(layouts[0]), ComputeLayoutFingerprint(layouts[1]),
                    ComputeLayoutFingerprint(layouts[2])} {}

absl::Status TierLayouts::Comparable(const BlockLayout& device, const BlockLayout& other) {
  const std::pair<const char*, std::pair<int32_t, int32_t>> dimensions[] = {
      {"layers", {device.layers, other.layers}},
      {"kv_heads", {device.kv_heads, other.kv_heads}},
      {"block_tokens", {device.block_tokens, other.block_tokens}},
      {"head_dim", {device.head_dim, other.head_dim}},
      {"latent_dim", {device.latent_dim, other.latent_dim}}};
  for (const auto& [name, values] : dimensions) {
    if (values.first == values.second) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", values.second, ", the device has ", values.first));
  }
  if (KvFormatBits(other.format) == 0) return absl::InvalidArgumentError("format: none");
  if (device.format == other.format && device.scale_group != other.scale_group) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale_group: ", other.scale_group, ", the device has ", device.scale_group));
  }
  return absl::OkStatus();
}

bool TierLayouts::Fits(const BlockHeader& header, Tier tier) const {
  return header.layout == fingerprint(tier) && header.format == layout(tier).format &&
         header.payload_bytes == block_bytes(tier);
}

LossyFormats TierLayouts::AfterMove(LossyFormats lossy_formats, Tier to) const {
  if (!ConvertsBack(layout(Tier::kDevice).format, layout(to).format)) lossy_formats.Add(layout(to).format);
  return lossy_formats;
}

BlockHeader TierLayouts::Convert(const BlockHeader& header, Tier from, std::span<const std::byte> in, Tier to,
                                 std::span<std::byte> out) {
  const auto start = SteadyClock::now();
  ConvertBlock(layout(from), in, layout(to), out);
  BlockHeader converted = header;
  converted.layout = fingerprint(to);
  converted.format = layout(to).format;
  converted.lossy_formats = AfterMove(header.lossy_formats, to);
  converted.payload_bytes = out.size();
  converted.checksum = ComputeChecksum(converted, out);
  const bool up = to == Tier::kDevice;
  Counters& counters = counters_[static_cast<size_t>(up ? from : to)][up ? 1 : 0];
  counters.blocks.fetch_add(1, std::memory_order_relaxed);
  counters.nanoseconds.fetch_add(
      std::chrono::duration_cast<std::chrono::nanoseconds>(SteadyClock::now() - start).count(),
      std::memory_order_relaxed);
  return converted;
}

absl::StatusOr<BlockHeader> TierLayouts::Move(const BlockHeader& header, Tier from, std::span<const std::byte> in,
                                              Tier to, std::span<std::byte> out) {
  if (Same(from, to)) {
    std::memcpy(out.data(), in.data(), in.size());
    KVMESH_RETURN_IF_ERROR(VerifyBlock(header, out));
    return header;
  }
  KVMESH_RETURN_IF_ERROR(VerifyBlock(header, in));
  return Convert(header, from, in, to, out);
}

ConversionBooks TierLayouts::books() const {
  ConversionBooks books;
  for (size_t tier = 0; tier < books.size(); ++tier) {
    for (size_t direction = 0; direction < 2; ++direction) {
      const Counters& counters = counters_[tier][direction];
      books[tier][direction] = {counters.blocks.load(std::memory_order_relaxed),
                                absl::Nanoseconds(counters.nanoseconds.load(std::memory_order_relaxed))};
    }
  }
  return books;
}

}  // namespace kvmesh
