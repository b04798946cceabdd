// How a block lies in each tier, and what a copy becomes when it moves from one to another (contract 8).
#ifndef KVMESH_KVSTORE_TIERS_TIER_LAYOUTS_H_
#define KVMESH_KVSTORE_TIERS_TIER_LAYOUTS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/time/time.h"
#include "kernels/layout.h"
#include "kvstore/base/status.h"
#include "kvstore/block/block_header.h"
#include "kvstore/pool/prefix_map.h"

namespace kvmesh {

// Blocks of `layout` in another format: the canonical layout of the same dimensions; `layout` itself when it has that
// format. INVALID_ARGUMENT: no format, an int4 row of odd size, or blocks of more than kMaxBlockBytes.
absl::StatusOr<BlockLayout> LayoutInFormat(const BlockLayout& layout, KvFormat format);

// Conversions since start: down to a tier, or up from it, to the device or to a peer.
enum class ConversionDirection : uint8_t { kDown = 0, kUp = 1 };
struct ConversionTotals {
  uint64_t blocks = 0;
  absl::Duration time;
};
// By Tier (of the device none), then by ConversionDirection.
using ConversionBooks = std::array<std::array<ConversionTotals, 2>, 3>;

// The device's format is what an identity's numerics name: a copy is lossy by a tier's format when values do not come
// back from it to the device's with the same bits. Moving up adds nothing. Thread safe.
class TierLayouts {
 public:
  // By tier; without such a tier the device's. REQUIRES: Comparable with the device's.
  explicit TierLayouts(const std::array<BlockLayout, 3>& layouts);

  // OK when blocks can be converted between the two. INVALID_ARGUMENT naming the dimension.
  static absl::Status Comparable(const BlockLayout& device, const BlockLayout& other);

  const BlockLayout& layout(Tier tier) const { return layouts_[static_cast<size_t>(tier)]; }
  const LayoutFingerprint& fingerprint(Tier tier) const { return fingerprints_[static_cast<size_t>(tier)]; }
  size_t block_bytes(Tier tier) const { return static_cast<size_t>(layout(tier).block_bytes); }
  // Whether a copy has the same bytes and header in both.
  bool Same(Tier a, Tier b) const { return fingerprint(a) == fingerprint(b); }
  // Whether a copy of this layout, format and payload may stand in `tier`.
  bool Fits(const BlockHeader& header, Tier tier) const;

  // What a copy in `tier` has that is made of one with `lossy_formats`.
  LossyFormats AfterMove(LossyFormats lossy_formats, Tier to) const;
  // Converts the block that `header` sealed and returns the header that seals it in `to`. REQUIRES: !Same(from, to);
  // `in` is verified; block_bytes of its tier each.
  BlockHeader Convert(const BlockHeader& header, Tier from, std::span<const std::byte> in, Tier to,
                      std::span<std::byte> out);
  // Copies or converts, verified. DATA_LOSS: `in` is not what `header` sealed; `out` is undefined then.
  absl::StatusOr<BlockHeader> Move(const BlockHeader& header, Tier from, std::span<const std::byte> in, Tier to,
                                   std::span<std::byte> out);

  ConversionBooks books() const;

 private:
  struct Counters {
    std::atomic<uint64_t> blocks{0};
    std::atomic<int64_t> nanoseconds{0};
  };

  const std::array<BlockLayout, 3> layouts_;
  const std::array<LayoutFingerprint, 3> fingerprints_;
  std::array<std::array<Counters, 2>, 3> counters_;
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_TIER_LAYOUTS_H_
