// What the Worker service's handlers share in reading requests and writing answers.
#ifndef KVMESH_WORKER_SERVER_DECODE_H_
#define KVMESH_WORKER_SERVER_DECODE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "kvmesh/v1/common.pb.h"
#include "kvmesh/v1/worker.pb.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/status.h"
#include "worker/engine/observer.h"
#include "worker/engine/peer_fetcher.h"
#include "worker/engine/sequence.h"

namespace kvmesh {

// Spans of one request at most.
inline constexpr int kMaxSources = 64;
// Deadline of calls that come without one.
inline constexpr absl::Duration kDefaultCallDeadline = absl::Seconds(60);

// INVALID_ARGUMENT naming the field: too many, an empty span, an address or ticket that is missing.
absl::StatusOr<std::vector<PeerSource>> SourcesFromProto(
    const google::protobuf::RepeatedPtrField<v1::SourceSpan>& sources);

// The caller's deadline, or kDefaultCallDeadline from now.
absl::Time CallDeadline(const grpc::ServerContext& context, const Clock& clock);

void HitsToProto(const HitTokensBySource& hits, v1::HitTokens& proto);

// The sequence's block tables, one for each layer group, at the end of `proto`.
void TablesToProto(const Sequence& sequence, bool with_layers,
                   google::protobuf::RepeatedPtrField<v1::GroupTable>& proto);

// fp32 values, little endian. INVALID_ARGUMENT naming `field` unless there are exactly `count`.
absl::StatusOr<std::vector<float>> FloatsFromBytes(const std::string& bytes, uint64_t count, absl::string_view field);
void FloatsToBytes(const std::vector<float>& values, std::string& bytes);

}  // namespace kvmesh

#endif  // KVMESH_WORKER_SERVER_DECODE_H_
