#include "kvstore/block/utf8.h"

#include <cstddef>
#include <cstdint>

namespace kvmesh {
namespace {

// What a lead byte asks for: how many bytes follow, and the range of the first of them (later ones are 80..BF).
struct Sequence {
  size_t following = 0;  // 0: not a lead byte of a longer sequence
  uint8_t low = 0x80;
  uint8_t high = 0xbf;
};

Sequence SequenceOf(uint8_t lead) {
  if (lead >= 0xc2 && lead <= 0xdf) return {1, 0x80, 0xbf};
  if (lead == 0xe0) return {2, 0xa0, 0xbf};
  if (lead == 0xed) return {2, 0x80, 0x9f};
  if (lead >= 0xe1 && lead <= 0xef) return {2, 0x80, 0xbf};
  if (lead == 0xf0) return {3, 0x90, 0xbf};
  if (lead >= 0xf1 && lead <= 0xf3) return {3, 0x80, 0xbf};
  if (lead == 0xf4) return {3, 0x80, 0x8f};
  return {};
}

}  // namespace

bool IsValidUtf8(absl::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  size_t i = 0;
  while (i < text.size()) {
    if (bytes[i] < 0x80) {
      ++i;
      continue;
    }
    const Sequence sequence = SequenceOf(bytes[i]);
    if (sequence.following == 0 || text.size() - i <= sequence.following) return false;
    if (bytes[i + 1] < sequence.low || bytes[i + 1] > sequence.high) return false;
    for (size_t k = 2; k <= sequence.following; ++k) {
      if (bytes[i + k] < 0x80 || bytes[i + k] > 0xbf) return false;
    }
    i += 1 + sequence.following;
  }
  return true;
}

}  // namespace kvmesh
