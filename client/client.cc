#include "client/client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kvstore/block/key_chain.h"
#include "kvstore/service/grpc_server.h"
#include "kvstore/service/grpc_status.h"
#include "kvstore/wire/wire.h"

namespace kvmesh {
namespace {

// Channels to workers that are kept; beyond it all are dropped and made anew as needed.
constexpr size_t kMaxWorkerChannels = 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  if (options.coordinators.empty()) return absl::InvalidArgumentError("--coordinator: at least one is needed");
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = MakeChannelCredentials(options.tls);
  if (!credentials.ok()) return credentials.status();
  return std::unique_ptr<Client>(new Client(options, *std::move(credentials)));
}

Client::Client(const ClientOptions& options, std::shared_ptr<grpc::ChannelCredentials> credentials)
    : options_(options), credentials_(std::move(credentials)) {
  for (const std::string& address : options_.coordinators) {
    coordinators_.push_back(v1::Coordinator::NewStub(MakeChannel(address, credentials_)));
  }
}

template <class Response>
absl::StatusOr<Response> Client::Ask(
    const std::function<grpc::Status(v1::Coordinator::Stub&, grpc::ClientContext&, Response&)>& call,
    bool not_found_asks_next) {
  absl::Status last;
  for (size_t i = 0; i < coordinators_.size(); ++i) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + options_.timeout));
    Response response;
    const absl::Status status = FromGrpcStatus(call(*coordinators_[i], context, response));
    if (status.ok()) return response;
    last = absl::Status(status.code(), absl::StrCat(status.message(), " (coordinator ", options_.coordinators[i], ")"));
    const bool silent = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!silent && !(not_found_asks_next && absl::IsNotFound(status))) break;
  }
  return last;
}

absl::StatusOr<v1::RouteResponse> Client::Route(const CacheIdentity& identity, std::span<const uint32_t> tokens,
                                                const RouteOptions& options) {
  KVMESH_RETURN_IF_ERROR(ValidateIdentity(identity));
  v1::RouteRequest request;
  IdentityToProto(identity, *request.mutable_identity());
  request.set_worker_id(options.worker_id);
  request.set_top_k(options.top_k);
  request.set_accepted_lossy_formats(options.accepted.bits());
  request.set_lookup_only(options.lookup_only);
  if (options.no_lookup) {
    request.set_prompt_tokens(tokens.size());
  } else if (options_.tenant_secret) {
    const RootKey root = DeriveRoot(*options_.tenant_secret, ComputeFingerprint(identity));
    const std::vector<BlockKey> keys = ComputeBlockKeys(RootAsParent(root), tokens, identity.block_tokens);
    request.set_block_keys(std::string(KeysToBytes(keys)));
    request.set_prompt_tokens(tokens.size());
  } else {
    request.mutable_tokens()->mutable_ids()->Add(tokens.begin(), tokens.end());
  }
  return Ask<v1::RouteResponse>([&](v1::Coordinator::Stub& stub, grpc::ClientContext& context,
                                    v1::RouteResponse& response) { return stub.Route(&context, request, &response); });
}

absl::Status Client::Complete(const std::string& placement_id, const v1::HitTokens& hits, bool failed) {
  v1::CompleteRequest request;
  request.set_placement_id(placement_id);
  *request.mutable_hits() = hits;
  request.set_failed(failed);
  const auto call = [&](v1::Coordinator::Stub& stub, grpc::ClientContext& context, v1::CompleteResponse& response) {
    return stub.Complete(&context, request, &response);
  };
  return Ask<v1::CompleteResponse>(call, /*not_found_asks_next=*/true).status();
}

absl::StatusOr<v1::ListWorkersResponse> Client::ListWorkers() {
  return Ask<v1::ListWorkersResponse>(
      [](v1::Coordinator::Stub& stub, grpc::ClientContext& context, v1::ListWorkersResponse& response) {
        return stub.ListWorkers(&context, {}, &response);
      });
}

absl::StatusOr<v1::CoordinatorStatsResponse> Client::Stats() {
  return Ask<v1::CoordinatorStatsResponse>(
      [](v1::Coordinator::Stub& stub, grpc::ClientContext& context, v1::CoordinatorStatsResponse& response) {
        return stub.Stats(&context, {}, &response);
      });
}

std::unique_ptr<v1::Worker::Stub> Client::WorkerAt(const std::string& address) {
  MutexLock lock(mu_);
  if (workers_.size() >= kMaxWorkerChannels) workers_.clear();
  std::shared_ptr<grpc::Channel>& channel = workers_[address];
  if (channel == nullptr) channel = MakeChannel(address, credentials_);
  return v1::Worker::NewStub(channel);
}

}  // namespace kvmesh
