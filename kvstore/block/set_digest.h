// The running digest of one set of blocks: equal on both ends of a report stream when the sets are equal.
#ifndef KVMESH_KVSTORE_BLOCK_SET_DIGEST_H_
#define KVMESH_KVSTORE_BLOCK_SET_DIGEST_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "kvstore/block/block_key.h"
#include "kvstore/block/lossy_formats.h"

namespace kvmesh {

// First 16 bytes of SHA-256(parent || key || u32 LE lossy formats), as a little-endian 128-bit number.
unsigned __int128 SetMember(const BlockKey& parent, const BlockKey& key, LossyFormats lossy_formats);

// Sum mod 2^128 of the members, and their count. Order does not matter.
class SetDigest {
 public:
  void Add(unsigned __int128 member) { sum_ += member, ++count_; }
  void Remove(unsigned __int128 member) { sum_ -= member, --count_; }
  uint64_t count() const { return count_; }
  // 16 bytes, little endian.
  std::string SumBytes() const;

  friend bool operator==(const SetDigest&, const SetDigest&) = default;

 private:
  unsigned __int128 sum_ = 0;
  uint64_t count_ = 0;
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BLOCK_SET_DIGEST_H_
