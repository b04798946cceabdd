// The set of lossy formats in a copy's history (contract 8): conversion adds, nothing removes.
#ifndef KVMESH_KVSTORE_BLOCK_LOSSY_FORMATS_H_
#define KVMESH_KVSTORE_BLOCK_LOSSY_FORMATS_H_

#include <cstdint>

#include "kernels/layout.h"

namespace kvmesh {

class LossyFormats {
 public:
  constexpr LossyFormats() = default;
  // From the wire: bit n stands for KvFormat value n.
  constexpr explicit LossyFormats(uint32_t bits) : bits_(bits) {}

  constexpr uint32_t bits() const { return bits_; }
  constexpr bool exact() const { return bits_ == 0; }
  constexpr void Add(KvFormat format) { bits_ |= 1u << static_cast<uint32_t>(format); }
  constexpr LossyFormats Union(LossyFormats other) const { return LossyFormats(bits_ | other.bits_); }
  constexpr bool SubsetOf(LossyFormats accepted) const { return (bits_ & ~accepted.bits_) == 0; }

  friend constexpr bool operator==(LossyFormats, LossyFormats) = default;

 private:
  uint32_t bits_ = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BLOCK_LOSSY_FORMATS_H_
