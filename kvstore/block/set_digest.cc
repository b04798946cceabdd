#include "kvstore/block/set_digest.h"

#include <bit>
#include <cstring>

#include "kvstore/block/secrets.h"
#include "kvstore/block/sha256.h"

namespace kvmesh {

static_assert(std::endian::native == std::endian::little, "members and sums are little-endian numbers");

unsigned __int128 SetMember(const BlockKey& parent, const BlockKey& key, LossyFormats lossy_formats) {
  const uint32_t bits = lossy_formats.bits();
  Sha256Stream stream;
  stream.Update(parent.bytes.data(), parent.bytes.size());
  stream.Update(key.bytes.data(), key.bytes.size());
  stream.Update(&bits, sizeof(bits));
  Digest32 digest;
  stream.Final(digest.bytes.data());
  unsigned __int128 member;
  std::memcpy(&member, digest.bytes.data(), sizeof(member));
  return member;
}

std::string SetDigest::SumBytes() const {
  std::string bytes(sizeof(sum_), '\0');
  std::memcpy(bytes.data(), &sum_, sizeof(sum_));
  return bytes;
}

}  // namespace kvmesh
