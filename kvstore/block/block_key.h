// Names of cached state: the root of an identity's chains and the chained key of each full block.
#ifndef KVMESH_KVSTORE_BLOCK_BLOCK_KEY_H_
#define KVMESH_KVSTORE_BLOCK_BLOCK_KEY_H_

#include "kvstore/base/bytes.h"

namespace kvmesh {

// 128-bit chained hash of a full block, valid cluster-wide. Block 0's parent is the identity's root.
using BlockKey = FixedBytes<struct BlockKeyTag, 16>;
// key[-1] of an identity's chains; also the handle by which an identity is erased.
using RootKey = FixedBytes<struct RootKeyTag, 16>;

// The parent key of block 0 is its root.
inline BlockKey RootAsParent(const RootKey& root) { return BlockKey{root.bytes}; }

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BLOCK_BLOCK_KEY_H_
