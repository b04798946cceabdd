// The names of stored formats, as flags, identities and reports write them.
#ifndef KVMESH_KERNELS_KV_FORMAT_H_
#define KVMESH_KERNELS_KV_FORMAT_H_

#include <optional>
#include <string_view>

#include "kernels/layout.h"

namespace kvmesh {

// Every format that has a name, by value.
inline constexpr KvFormat kKvFormats[] = {KvFormat::kF32,     KvFormat::kF16,  KvFormat::kBf16,
                                          KvFormat::kFp8E4m3, KvFormat::kInt8, KvFormat::kInt4};

// "fp32", "fp16", "bf16", "fp8", "int8" or "int4"; "unspecified" for all else. The numerics of identities hold these
// names: they never change.
constexpr std::string_view KvFormatName(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return "fp32";
    case KvFormat::kF16:
      return "fp16";
    case KvFormat::kBf16:
      return "bf16";
    case KvFormat::kFp8E4m3:
      return "fp8";
    case KvFormat::kInt8:
      return "int8";
    case KvFormat::kInt4:
      return "int4";
    case KvFormat::kUnspecified:
      break;
  }
  return "unspecified";
}

// The format of that exact name; nullopt for any other text.
constexpr std::optional<KvFormat> ParseKvFormat(std::string_view name) {
  for (const KvFormat format : kKvFormats) {
    if (KvFormatName(format) == name) return format;
  }
  return std::nullopt;
}

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_KV_FORMAT_H_
