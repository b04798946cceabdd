// Fixed-size byte strings (keys, digests, incarnations), hex, and little-endian encoding.
#ifndef KVMESH_KVSTORE_BASE_BYTES_H_
#define KVMESH_KVSTORE_BASE_BYTES_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace kvmesh {

// N bytes with their own type `Tag`. Ordered and hashable; default is all zero.
template <class Tag, size_t N>
struct FixedBytes {
  static constexpr size_t kSize = N;
  std::array<uint8_t, N> bytes{};

  // nullopt unless `raw` has exactly N bytes.
  static std::optional<FixedBytes> FromBytes(absl::string_view raw) {
    if (raw.size() != N) return std::nullopt;
    FixedBytes out;
    std::memcpy(out.bytes.data(), raw.data(), N);
    return out;
  }
  absl::string_view view() const { return {reinterpret_cast<const char*>(bytes.data()), N}; }
  std::string ToString() const { return std::string(view()); }
  std::string ToHex() const { return absl::BytesToHexString(view()); }
  bool IsZero() const { return *this == FixedBytes{}; }

  friend auto operator<=>(const FixedBytes&, const FixedBytes&) = default;

  template <class H>
  friend H AbslHashValue(H h, const FixedBytes& b) {
    // Contents are digests or random: the first 8 bytes are as good as a hash of all.
    uint64_t word;
    static_assert(N >= sizeof(word));
    std::memcpy(&word, b.bytes.data(), sizeof(word));
    return H::combine(std::move(h), word);
  }
};

// A worker's or coordinator's random 128-bit start id.
using Incarnation = FixedBytes<struct IncarnationTag, 16>;

// Appends the little-endian bytes of an unsigned integer.
template <class T>
void AppendLittleEndian(T value, std::string& out) {
  static_assert(std::is_unsigned_v<T>);
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BASE_BYTES_H_
