// Distinct integer types for ids and counts, so that a block id is never taken for a count of bytes.
#ifndef KVMESH_KVSTORE_BASE_STRONG_INT_H_
#define KVMESH_KVSTORE_BASE_STRONG_INT_H_

#include <compare>
#include <cstdint>
#include <utility>

#include "absl/hash/hash.h"

namespace kvmesh {

// A `Rep` with its own type. Conversions are explicit: construct from, and read through value().
template <class Tag, class Rep>
class StrongInt {
 public:
  constexpr StrongInt() = default;
  constexpr explicit StrongInt(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongInt, StrongInt) = default;

  template <class H>
  friend H AbslHashValue(H h, StrongInt id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  Rep value_ = 0;
};

// Index of a slot in one pool; meaningless in any other pool or process.
using BlockId = StrongInt<struct BlockIdTag, uint32_t>;
// Index of a slot in one disk tier.
using DiskSlot = StrongInt<struct DiskSlotTag, uint64_t>;
// Identity of an open sequence on one worker incarnation; never reused within it.
using SequenceId = StrongInt<struct SequenceIdTag, uint64_t>;

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BASE_STRONG_INT_H_
