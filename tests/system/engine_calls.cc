#include "tests/system/engine_calls.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "absl/time/clock.h"
#include "grpcpp/client_context.h"
#include "kvstore/service/grpc_status.h"
#include "kvstore/wire/wire.h"

namespace kvmesh {
namespace {

constexpr size_t kPieceBytes = 10'007;  // cuts blocks anywhere

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
}

}  // namespace

std::string FloatBytes(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

std::vector<float> FloatsOf(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

std::vector<float> DrawRow(uint64_t seed, uint32_t layer, bool key, uint64_t position, size_t floats) {
  std::mt19937_64 random(seed * 1'000'000'007 + layer * 1'000'003 + (key ? 7 : 0) + position * 131);
  std::normal_distribution<float> normal;
  std::vector<float> values(floats);
  for (float& value : values) value = normal(random);
  return values;
}

absl::StatusOr<v1::OpenSequenceResponse> OpenSequence(v1::Worker::Stub& stub, const CacheIdentity& identity,
                                                      const std::vector<uint32_t>& tokens,
                                                      const v1::RouteResponse* route, LossyFormats accepted) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::OpenSequenceRequest request;
  IdentityToProto(identity, *request.mutable_identity());
  request.mutable_tokens()->Add(tokens.begin(), tokens.end());
  if (route != nullptr) *request.mutable_sources() = route->sources();
  request.set_accepted_lossy_formats(accepted.bits());
  v1::OpenSequenceResponse response;
  const grpc::Status status = stub.OpenSequence(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

absl::Status CloseSequence(v1::Worker::Stub& stub, uint64_t sequence) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::CloseSequenceRequest request;
  request.set_sequence_id(sequence);
  v1::CloseSequenceResponse response;
  return FromGrpcStatus(stub.CloseSequence(&context, request, &response));
}

absl::StatusOr<v1::PutBlocksResponse> PutBlocks(v1::Worker::Stub& stub, const CacheIdentity& identity,
                                                const std::vector<uint32_t>& tokens, uint32_t first_block,
                                                const std::string& payload, std::optional<uint32_t> group) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::PutBlocksResponse response;
  const auto writer = stub.PutBlocks(&context, &response);
  v1::PutBlocksRequest request;
  IdentityToProto(identity, *request.mutable_open()->mutable_identity());
  request.mutable_open()->mutable_tokens()->Add(tokens.begin(), tokens.end());
  request.mutable_open()->set_first_block(first_block);
  if (group) request.mutable_open()->set_group(*group);
  bool open = writer->Write(request);
  for (size_t at = 0; at < payload.size() && open; at += kPieceBytes) {
    request.set_payload(payload.substr(at, kPieceBytes));
    open = writer->Write(request);
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

absl::StatusOr<v1::AppendKvResponse> AppendKv(v1::Worker::Stub& stub, const v1::AppendKvRequest& request) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::AppendKvResponse response;
  const grpc::Status status = stub.AppendKv(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

absl::StatusOr<v1::AttendResponse> Attend(v1::Worker::Stub& stub, const v1::AttendRequest& request) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::AttendResponse response;
  const grpc::Status status = stub.Attend(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

BlocksRead GetBlocks(v1::Worker::Stub& stub, const CacheIdentity& identity, const std::vector<uint32_t>& tokens,
                     LossyFormats accepted, const BlockSpan& span) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::GetBlocksRequest request;
  IdentityToProto(identity, *request.mutable_identity());
  request.mutable_tokens()->Add(tokens.begin(), tokens.end());
  request.set_accepted_lossy_formats(accepted.bits());
  request.set_first_block(span.first_block);
  request.set_blocks(span.blocks);
  if (span.group) request.set_group(*span.group);
  BlocksRead read;
  const auto reader = stub.GetBlocks(&context, request);
  v1::BlockPiece piece;
  while (reader->Read(&piece)) {
    read.payload += piece.payload();
    read.blocks += piece.last() ? 1 : 0;
  }
  read.status = FromGrpcStatus(reader->Finish());
  return read;
}

}  // namespace kvmesh
