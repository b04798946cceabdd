// What a kernel needs to know of a pool: where its slots are and how one is laid out.
#ifndef KVMESH_KERNELS_KV_POOL_VIEW_H_
#define KVMESH_KERNELS_KV_POOL_VIEW_H_

#include <cstddef>
#include <cstdint>

#include "kernels/layout.h"

namespace kvmesh {

// `slots` slots of `slot_stride` bytes from `base`; each holds one block of `layout`. Does not own the memory.
// Block ids index slots; offsets are 64-bit, so pools beyond 2^31 bytes work.
struct KvPoolView {
  std::byte* base = nullptr;
  int64_t slot_stride = 0;
  int64_t slots = 0;
  BlockLayout layout;

  constexpr std::byte* At(int64_t block_id, int64_t layer, int64_t kv, int64_t kv_head, int64_t token) const {
    return base + block_id * slot_stride + layout.Offset(layer, kv, kv_head, token);
  }
};

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_KV_POOL_VIEW_H_
