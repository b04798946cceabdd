// Request traces in the format published with Mooncake: one JSON object a line.
#ifndef KVMESH_CLIENT_CLI_TRACE_H_
#define KVMESH_CLIENT_CLI_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kvstore/base/status.h"

namespace kvmesh {

struct TraceRequest {
  int64_t timestamp_ms = 0;  // since the start of the trace
  uint64_t output_tokens = 0;
  std::vector<uint64_t> hash_ids;  // one per block; equal ids mean equal prefixes up to there
};

// Tokens of one hash id's block.
inline constexpr uint32_t kMooncakeBlockTokens = 512;

// INVALID_ARGUMENT naming --trace, the line and the field; or the file can't be read.
absl::StatusOr<std::vector<TraceRequest>> ReadMooncakeTrace(const std::string& path);

}  // namespace kvmesh

#endif  // KVMESH_CLIENT_CLI_TRACE_H_
