// Randomness as an injected dependency.
#ifndef KVMESH_KVSTORE_BASE_RANDOM_H_
#define KVMESH_KVSTORE_BASE_RANDOM_H_

#include <cstddef>
#include <cstdint>

#include "kvstore/base/bytes.h"

namespace kvmesh {

// Thread safe.
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  // Fills `out` with `size` random bytes.
  virtual void Fill(void* out, size_t size) = 0;

  // The kernel's generator; never destroyed.
  static RandomSource& Real();
};

// A fresh incarnation from `random`; never all zero.
Incarnation NewIncarnation(RandomSource& random);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BASE_RANDOM_H_
