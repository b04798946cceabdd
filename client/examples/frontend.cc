// How a frontend with its own engine uses kvmesh: K/V blocks that one worker was given are read through another.
//
//   kvmesh-frontend-example COORDINATOR        (a cluster from `kvmesh up`, without TLS)
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "kvstore/service/grpc_status.h"
#include "kvstore/wire/wire.h"

namespace kvmesh {
namespace {

constexpr int kBlocks = 4;

// Stores the bytes of the prompt's blocks on one worker.
absl::Status Put(Client& client, const v1::WorkerInfo& worker, const CacheIdentity& identity,
                 const std::vector<uint32_t>& tokens) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  v1::PutBlocksResponse response;
  const auto writer = client.WorkerAt(worker.address())->PutBlocks(&context, &response);
  v1::PutBlocksRequest request;
  IdentityToProto(identity, *request.mutable_open()->mutable_identity());
  request.mutable_open()->mutable_tokens()->Add(tokens.begin(), tokens.end());
  writer->Write(request);
  for (int block = 0; block < kBlocks; ++block) {
    request.set_payload(std::string(worker.block_bytes(), static_cast<char>('a' + block)));
    writer->Write(request);
  }
  writer->WritesDone();
  KVMESH_RETURN_IF_ERROR(FromGrpcStatus(writer->Finish()));
  std::printf("%s stored %u blocks\n", worker.worker_id().c_str(), response.stored_blocks());
  return absl::OkStatus();
}

// Reads them through another worker, which pulls them from the first.
absl::Status Get(Client& client, const v1::WorkerInfo& worker, const CacheIdentity& identity,
                 const std::vector<uint32_t>& tokens) {
  const absl::StatusOr<v1::RouteResponse> route = client.Route(identity, tokens, {.worker_id = worker.worker_id()});
  if (!route.ok()) return route.status();
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  v1::GetBlocksRequest request;
  IdentityToProto(identity, *request.mutable_identity());
  request.mutable_tokens()->Add(tokens.begin(), tokens.end());
  *request.mutable_sources() = route->sources();
  const auto reader = client.WorkerAt(worker.address())->GetBlocks(&context, request);
  v1::BlockPiece piece;
  int blocks = 0;
  bool right = true;
  while (reader->Read(&piece)) {
    right = right && piece.payload().find_first_not_of(static_cast<char>('a' + blocks)) == std::string::npos;
    blocks += piece.last() ? 1 : 0;
  }
  KVMESH_RETURN_IF_ERROR(FromGrpcStatus(reader->Finish()));
  std::printf("%s served %d blocks\n", worker.worker_id().c_str(), blocks);
  if (blocks == kBlocks && right) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(blocks, " of ", kBlocks, " blocks came back", right ? "" : ", with wrong bytes"));
}

// Waits until the coordinator knows what `worker` was just given: reports travel behind the data.
absl::Status AwaitIndexed(Client& client, const CacheIdentity& identity, const std::vector<uint32_t>& tokens) {
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  while (absl::Now() < deadline) {
    const absl::StatusOr<v1::RouteResponse> route = client.Route(identity, tokens, {});
    if (!route.ok()) return route.status();
    if (route->matched_tokens() == tokens.size()) return absl::OkStatus();
    absl::SleepFor(absl::Milliseconds(10));
  }
  return absl::DeadlineExceededError("the coordinator did not learn of the blocks");
}

absl::Status Run(const std::string& coordinator) {
  const absl::StatusOr<std::unique_ptr<Client>> client =
      Client::Create({.coordinators = {coordinator}, .tls = {.insecure = true}, .tenant_secret = std::nullopt});
  if (!client.ok()) return client.status();
  const absl::StatusOr<v1::ListWorkersResponse> workers = (*client)->ListWorkers();
  if (!workers.ok()) return workers.status();
  if (workers->workers_size() < 2) return absl::FailedPreconditionError("the cluster needs two workers");
  const v1::WorkerInfo& first = workers->workers(0).info();
  const v1::WorkerInfo& second = workers->workers(1).info();

  CacheIdentity identity;
  identity.model = "my-engine";
  identity.numerics = "bf16";
  identity.block_tokens = first.block_tokens();
  std::vector<uint32_t> tokens(kBlocks * identity.block_tokens);
  std::iota(tokens.begin(), tokens.end(), 1000u);
  KVMESH_RETURN_IF_ERROR(Put(**client, first, identity, tokens));
  KVMESH_RETURN_IF_ERROR(AwaitIndexed(**client, identity, tokens));
  return Get(**client, second, identity, tokens);
}

}  // namespace
}  // namespace kvmesh

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: kvmesh-frontend-example COORDINATOR\n");
    return 2;
  }
  const absl::Status status = kvmesh::Run(argv[1]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
