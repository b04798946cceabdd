// JSON of model folders: parsed without exceptions, duplicate names refused.
#ifndef KVMESH_WORKER_MODEL_STRICT_JSON_H_
#define KVMESH_WORKER_MODEL_STRICT_JSON_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "kvstore/base/status.h"
#include "nlohmann/json.hpp"

namespace kvmesh {

// Nesting beyond this is refused.
inline constexpr int kMaxJsonDepth = 32;

// INVALID_ARGUMENT beginning with `what`: not JSON, nested too deeply, or an object that has a name twice.
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text, absl::string_view what);

// Reads a whole file of at most `max_bytes`. NOT_FOUND: no such file. INVALID_ARGUMENT: longer, or not a regular file.
// UNAVAILABLE: can't be read. All name the path.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t max_bytes);

// The value of an integer between 0 and `max`; nullopt for anything else (negative, fractional, another type).
std::optional<int64_t> JsonCount(const nlohmann::json& value, int64_t max);

}  // namespace kvmesh

#endif  // KVMESH_WORKER_MODEL_STRICT_JSON_H_
