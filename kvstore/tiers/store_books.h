// What a block store counts, and by which reasons it counts misses.
#ifndef KVMESH_KVSTORE_TIERS_STORE_BOOKS_H_
#define KVMESH_KVSTORE_TIERS_STORE_BOOKS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "kvstore/block/set_digest.h"
#include "kvstore/tiers/tier_layouts.h"

namespace kvmesh {

// Why a lookup or load found less than asked for; counted by reason.
enum class MissReason : uint8_t {
  kAbsent = 0,
  kCorrupt,  // checksum or header mismatch: erased
  kIoError,
  kPinLimit,  // pinned bytes reached their bound
  kPoolFull,  // every device slot pinned
  kDeadline,
  kLossy,  // held only in a format that the request does not accept
};
inline constexpr size_t kMissReasons = 7;
absl::string_view MissReasonName(MissReason reason);

// Counts by tier and set are arrays by Tier and BlockSetKind.
struct StoreBooks {
  struct TierBooks {
    uint64_t capacity = 0;
    uint64_t used = 0;
  };
  std::array<TierBooks, 3> tiers;
  std::array<SetDigest, 3> digests;
  uint64_t pinned_blocks = 0;                   // device copies with a pin
  uint64_t read_pins = 0;                       // host and disk copies with a pin
  uint64_t private_blocks = 0;                  // promotions in flight included
  bool disk_writable = false;                   // there is a disk, and it takes blocks
  uint64_t disk_errors = 0;                     // DiskTier::Usage::io_errors
  std::array<uint64_t, 3> evictions{};          // since start, by tier
  std::array<uint64_t, kMissReasons> misses{};  // since start; one for each run that ended or copy that was lost
  std::array<uint64_t, 3> promoted_bytes{};     // by source tier, in its format
  std::array<uint64_t, 3> demoted_bytes{};      // by destination tier, in its format
  std::array<uint64_t, 3> lossy_promotions{};   // blocks that are not exact, by source tier
  std::array<uint64_t, 3> lossy_demotions{};    // the same, by destination tier
  ConversionBooks conversions{};

  // Adds the counts of a store whose blocks stand beside this one's; the digests stay.
  void Add(const StoreBooks& other);
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_STORE_BOOKS_H_
