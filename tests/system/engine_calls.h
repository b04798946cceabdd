// The calls of an engine that keeps its cache in a worker: 2 layers, 2 K/V heads, head size 16, as ProcessCluster
// starts workers without a model.
#ifndef KVMESH_TESTS_SYSTEM_ENGINE_CALLS_H_
#define KVMESH_TESTS_SYSTEM_ENGINE_CALLS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvmesh/v1/coordinator.pb.h"
#include "kvmesh/v1/worker.grpc.pb.h"
#include "kvstore/base/status.h"
#include "kvstore/block/cache_identity.h"
#include "kvstore/block/lossy_formats.h"

namespace kvmesh {

inline constexpr uint32_t kEngineLayers = 2;
inline constexpr uint32_t kEngineKvHeads = 2;
inline constexpr uint32_t kEngineHeadDim = 16;
inline constexpr uint32_t kEngineBlockTokens = 16;
inline constexpr size_t kEngineTokenFloats = size_t{kEngineKvHeads} * kEngineHeadDim;  // of K or V in one layer
inline constexpr size_t kEngineBlockBytes = kEngineLayers * 2 * kEngineBlockTokens * kEngineTokenFloats * sizeof(float);

// Floats as they travel.
std::string FloatBytes(std::span<const float> values);
std::vector<float> FloatsOf(const std::string& bytes);
// A position's K (or V) in one layer: a function of all that is given.
std::vector<float> DrawRow(uint64_t seed, uint32_t layer, bool key, uint64_t position, size_t floats);

// Each call has a deadline of 10 s and returns the server's status.
absl::StatusOr<v1::OpenSequenceResponse> OpenSequence(v1::Worker::Stub& stub, const CacheIdentity& identity,
                                                      const std::vector<uint32_t>& tokens,
                                                      const v1::RouteResponse* route = nullptr,
                                                      LossyFormats accepted = LossyFormats());
absl::Status CloseSequence(v1::Worker::Stub& stub, uint64_t sequence);
absl::StatusOr<v1::PutBlocksResponse> PutBlocks(v1::Worker::Stub& stub, const CacheIdentity& identity,
                                                const std::vector<uint32_t>& tokens, uint32_t first_block,
                                                const std::string& payload,
                                                std::optional<uint32_t> group = std::nullopt);
absl::StatusOr<v1::AppendKvResponse> AppendKv(v1::Worker::Stub& stub, const v1::AppendKvRequest& request);
absl::StatusOr<v1::AttendResponse> Attend(v1::Worker::Stub& stub, const v1::AttendRequest& request);
struct BlocksRead {
  absl::Status status;
  uint64_t blocks = 0;
  std::string payload;
};
struct BlockSpan {
  uint32_t first_block = 0;
  uint32_t blocks = 0;            // 0: to the end
  std::optional<uint32_t> group;  // none: the first
};
BlocksRead GetBlocks(v1::Worker::Stub& stub, const CacheIdentity& identity, const std::vector<uint32_t>& tokens,
                     LossyFormats accepted = LossyFormats(), const BlockSpan& span = {});

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SYSTEM_ENGINE_CALLS_H_
