#include "client/cli/trace.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "kvstore/block/key_chain.h"

namespace kvmesh {
namespace {

absl::StatusOr<TraceRequest> ParseLine(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("not a JSON object");
  TraceRequest request;
  const auto unsigned_field = [&json](const char* name, uint64_t& value) {
    const auto it = json.find(name);
    if (it == json.end() || !it->is_number_unsigned()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": must be a whole number"));
    }
    value = it->get<uint64_t>();
    return absl::OkStatus();
  };
  uint64_t timestamp = 0;
  KVMESH_RETURN_IF_ERROR(unsigned_field("timestamp", timestamp));
  KVMESH_RETURN_IF_ERROR(unsigned_field("output_length", request.output_tokens));
  if (timestamp > (uint64_t{1} << 48)) return absl::InvalidArgumentError("timestamp: out of range");
  request.timestamp_ms = static_cast<int64_t>(timestamp);
  const auto ids = json.find("hash_ids");
  if (ids == json.end() || !ids->is_array()) return absl::InvalidArgumentError("hash_ids: must be an array");
  if (ids->size() > kMaxPromptTokens / kMooncakeBlockTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("hash_ids: ", ids->size(), ", the limit is ", kMaxPromptTokens / kMooncakeBlockTokens));
  }
  for (const nlohmann::json& id : *ids) {
    if (!id.is_number_unsigned()) return absl::InvalidArgumentError("hash_ids: must hold whole numbers");
    request.hash_ids.push_back(id.get<uint64_t>());
  }
  return request;
}

}  // namespace

absl::StatusOr<std::vector<TraceRequest>> ReadMooncakeTrace(const std::string& path) {
  std::ifstream in(path);
  if (!in) return absl::InvalidArgumentError(absl::StrCat("--trace: cannot read ", path));
  std::vector<TraceRequest> requests;
  std::string line;
  for (size_t number = 1; std::getline(in, line); ++number) {
    if (line.empty()) continue;
    absl::StatusOr<TraceRequest> request = ParseLine(line);
    if (!request.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--trace: ", path, " line ", number, ": ", request.status().message()));
    }
    requests.push_back(*std::move(request));
  }
  if (requests.empty()) return absl::InvalidArgumentError(absl::StrCat("--trace: ", path, " has no requests"));
  return requests;
}

}  // namespace kvmesh
