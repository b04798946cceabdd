#include "worker/server/decode.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kvstore/block/key_chain.h"

namespace kvmesh {

static_assert(std::endian::native == std::endian::little, "floats travel in little endian");

absl::StatusOr<std::vector<PeerSource>> SourcesFromProto(
    const google::protobuf::RepeatedPtrField<v1::SourceSpan>& sources) {
  if (sources.size() > kMaxSources) {
    return absl::InvalidArgumentError(absl::StrCat("sources: ", sources.size(), ", the limit is ", kMaxSources));
  }
  std::vector<PeerSource> out;
  for (const v1::SourceSpan& source : sources) {
    if (source.block_count() == 0 || source.block_count() > kMaxPromptTokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("sources.block_count: ", source.block_count(), ", must be 1 to ", kMaxPromptTokens));
    }
    if (source.peer_address().empty()) return absl::InvalidArgumentError("sources.peer_address: missing");
    if (source.ticket().empty()) return absl::InvalidArgumentError("sources.ticket: missing");
    out.push_back({.first_block = source.first_block(),
                   .block_count = source.block_count(),
                   .peer_id = source.peer_id(),
                   .peer_address = source.peer_address(),
                   .ticket = source.ticket()});
  }
  return out;
}

absl::Time CallDeadline(const grpc::ServerContext& context, const Clock& clock) {
  const absl::Time deadline = absl::FromChrono(context.deadline());
  const absl::Time standard = clock.Now() + kDefaultCallDeadline;
  // Without a deadline gRPC reports one that is centuries away.
  return deadline > clock.Now() + absl::Hours(24) ? standard : deadline;
}

void HitsToProto(const HitTokensBySource& hits, v1::HitTokens& proto) {
  proto.set_device(hits[static_cast<size_t>(HitSource::kDevice)]);
  proto.set_host(hits[static_cast<size_t>(HitSource::kHost)]);
  proto.set_disk(hits[static_cast<size_t>(HitSource::kDisk)]);
  proto.set_peer(hits[static_cast<size_t>(HitSource::kPeer)]);
}

void TablesToProto(const Sequence& sequence, bool with_layers,
                   google::protobuf::RepeatedPtrField<v1::GroupTable>& proto) {
  for (size_t i = 0; i < sequence.groups(); ++i) {
    const GroupTable& table = sequence.table(i);
    v1::GroupTable& out = *proto.Add();
    out.set_group(table.group().number);
    out.set_window(static_cast<uint64_t>(table.group().window));
    out.set_sinks(static_cast<uint64_t>(table.group().sinks));
    if (with_layers) out.mutable_layers()->Add(table.group().layers.begin(), table.group().layers.end());
    const std::vector<uint32_t> ids = table.ids();
    out.mutable_block_table()->Add(ids.begin(), ids.end());
  }
}

absl::StatusOr<std::vector<float>> FloatsFromBytes(const std::string& bytes, uint64_t count, absl::string_view field) {
  if (bytes.size() % sizeof(float) != 0 || bytes.size() / sizeof(float) != count) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", bytes.size(), " bytes, must be ", count, " fp32 values"));
  }
  std::vector<float> values(count);
  if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void FloatsToBytes(const std::vector<float>& values, std::string& bytes) {
  bytes.resize(values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
}

}  // namespace kvmesh
